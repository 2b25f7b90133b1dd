"""Makes gpu_sidecar's gRPC stubs from its .proto: ``python -m tests.gpu_sidecar.generate_stubs``.

The generators pin the very runtime they came with, and refuse both older and much newer ones; the code below
the pins uses only the descriptor pool and calls that protobuf 5.28 and grpcio 1.66 have. So the pins are cut
out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTO = "gpu_sidecar/sidecar.proto"
STUBS = ("gpu_sidecar/sidecar_pb2.py", "gpu_sidecar/sidecar_pb2.pyi", "gpu_sidecar/sidecar_pb2_grpc.py")

PINS = (
    r"# Protobuf Python Version: .*\n",
    r"from google\.protobuf import runtime_version as _runtime_version\n",
    r"_runtime_version\.ValidateProtobufRuntimeVersion\([^)]*\)\n",
    r"import warnings\n",
    r"GRPC_GENERATED_VERSION = (?:.|\n)*?    \)\n\n",
)


def without_pins(source: str) -> str:
    """The generated module without its checks of the runtime's version."""
    for pin in PINS:
        source = re.sub(pin, "", source)
    return "# ruff: noqa\n# fmt: off\n" + source


def generate() -> dict[str, str]:
    """``{path: source}`` of both stubs. Raises ``ImportError`` or ``CalledProcessError`` without
    grpcio-tools."""
    import grpc_tools  # noqa: F401 - the subprocess needs it; fail here with a clear name

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={folder}"]
        command += [f"--grpc_python_out={folder}", f"--pyi_out={folder}", PROTO]
        subprocess.run(command, cwd=ROOT, check=True)
        return {stub: without_pins((Path(folder) / stub).read_text()) for stub in STUBS}


if __name__ == "__main__":
    for stub, source in generate().items():
        (ROOT / stub).write_text(source)
        print(stub)
