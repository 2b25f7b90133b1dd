"""The rooms' import rules, held against the code."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"loadgen", "scenarios", "gpu_sidecar", "traces", "tests"}
STDLIB = set(sys.stdlib_module_names)

ALLOWED = {
    "traces": {"traces", "numpy", "scipy", "orjson", "httpx", "zstandard", "pyarrow", "matplotlib"},
    "gpu_sidecar": {"gpu_sidecar", "pynvml", "grpc", "google", "prometheus_client"},
    "scenarios": {"scenarios", "loadgen", "traces", "numpy", "scipy", "orjson", "pydantic", "rich"},
}
LOCUST_MAY_BE_IMPORTED_IN = {"loadgen/engine.py", "loadgen/users.py"}
HEAVY_MUST_BE_LAZY = {"scipy", "pyarrow", "matplotlib"}


def modules() -> list[Path]:
    packages = ("loadgen", "scenarios", "gpu_sidecar", "traces")
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Full dotted names that the module imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the package"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", modules(), ids=name)
def test_a_package_imports_only_what_its_room_may(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    roots = {full.split(".")[0] for full in imports(path)} - STDLIB - {"__future__"}
    if package in ALLOWED:
        assert roots <= ALLOWED[package]
        return
    assert "tests" not in roots
    if "scenarios" in roots:
        assert name(path).startswith("loadgen/cli/"), "only loadgen.cli may import scenarios, lazily"
    if "gpu_sidecar" in roots:
        assert name(path).startswith(("loadgen/collect", "loadgen/analysis"))


@pytest.mark.parametrize("path", modules(), ids=name)
def test_only_the_engine_room_imports_locust(path: Path) -> None:
    roots = {full.split(".")[0] for full in imports(path)}
    if "locust" in roots:
        assert name(path) in LOCUST_MAY_BE_IMPORTED_IN or name(path).startswith("loadgen/cluster/")


@pytest.mark.parametrize("path", modules(), ids=name)
def test_analysis_opens_no_socket_and_reads_no_clock(path: Path) -> None:
    if not name(path).startswith(("loadgen/analysis/", "loadgen/report/")):
        return
    found = imports(path)
    forbidden = {"socket", "time", "gevent", "locust", "httpx", "aiohttp", "loadgen.net", "loadgen.engine"}
    assert not {f for f in found if f.split(".")[0] in forbidden or f in forbidden}


@pytest.mark.parametrize("path", modules(), ids=name)
def test_heavy_libraries_are_imported_only_inside_functions(path: Path) -> None:
    roots = {full.split(".")[0] for full in imports(path, top_level_only=True)}
    assert not roots & HEAVY_MUST_BE_LAZY


def test_nothing_is_called_utils_or_common() -> None:
    assert not [p for p in modules() if p.stem in ("utils", "util", "common", "helpers", "misc")]


@pytest.mark.parametrize("path", modules(), ids=name)
def test_a_module_stays_within_reach_of_one_reading(path: Path) -> None:
    if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
        return
    assert len(path.read_text().splitlines()) <= 400
