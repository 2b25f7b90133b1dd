"""What our client records where a hop refuses a request for its size: HTTP headers, gRPC metadata, bodies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadgen.builtin_endpoint import builtin_endpoint, builtin_grpc_endpoint
from loadgen.proxy.envoy_config import ENVOY_DEFAULTS, EnvoyOptions, Limits
from loadgen.proxy.envoy_process import running_envoy
from tests.loadgen.program import records, run

pytestmark = pytest.mark.live
NOISY = Path(__file__).parents[1] / "loadgen/noisy_machine.toml"
ENVOYS = {"default": ENVOY_DEFAULTS, "nghttp2": Limits(oghttp2=False), "oghttp2": Limits()}
LARGE = 20_000
"""Tokens: about 130 KB, beyond every default and beyond 65,536 bytes in one value."""


@pytest.fixture(scope="module")
def hops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where to send: ``http`` and ``grpc`` directly (gRPC core with its own limits), and through each Envoy."""
    folder = tmp_path_factory.mktemp("hops")
    room = ["--max-model-len", "1000000", "--prefill-tokens-per-s", "1000000"]
    with ExitStack() as running:
        http = running.enter_context(builtin_endpoint(room))
        plain = running.enter_context(builtin_grpc_endpoint(room))
        raised = running.enter_context(builtin_grpc_endpoint([*room, "--grpc-max-metadata", "1000000"]))
        found = {"http": http, "grpc": plain}
        for name, limits in ENVOYS.items():
            options = EnvoyOptions((http,), (raised,), limits=limits)
            envoy = running.enter_context(running_envoy(options, folder / name))
            found[f"http {name}"], found[f"grpc {name}"] = envoy.fronts["http"], envoy.fronts["grpc"]
        yield found


def outcome(url: str, out: Path, *options: object, tokens: int = LARGE) -> dict[str, Any]:
    """The one record of a request of so many tokens."""
    dialect = "vllm-grpc" if url.startswith("grpc") else "chat"
    run("run", "--base-url", url, "--endpoint", dialect, "--concurrency", 1, "--num-requests", 1, "--input-len", tokens,
        "--output-len", 2, "--breaker-error-rate", 1.01, "--plan", NOISY, "--out", out, "--quiet",
        *options)  # fmt: skip
    row = records(out)[0]
    print(url, *options, tokens, row["outcome"], row.get("status"), row.get("error"))
    return row


@pytest.mark.parametrize("hop", ["http", "http default", "http nghttp2", "http oghttp2"])
def test_a_body_of_any_size_passes_every_http_hop(hops: dict[str, str], tmp_path: Path, hop: str) -> None:
    assert outcome(hops[hop], tmp_path / "r", tokens=150_000)["outcome"] == "ok"


@pytest.mark.parametrize("hop", ["grpc default", "grpc oghttp2"])
def test_a_large_message_passes_every_grpc_hop(hops: dict[str, str], tmp_path: Path, hop: str) -> None:
    assert outcome(hops[hop], tmp_path / "r", tokens=150_000)["outcome"] == "ok"


@pytest.mark.parametrize(
    ("hop", "ends"),
    [
        ("http", ("ok", 200)),
        ("http default", ("too_large", 431)),
        ("http nghttp2", ("ok", 200)),
        ("http oghttp2", ("ok", 200)),
        ("grpc", ("too_large", 8)),
        ("grpc default", ("too_large", None)),
        ("grpc nghttp2", ("too_large", None)),
        ("grpc oghttp2", ("ok", 0)),
    ],
)
def test_a_large_header_value_ends_at_each_hop_as_the_table_says(
    hops: dict[str, str], tmp_path: Path, hop: str, ends: tuple[str, int | None]
) -> None:
    row = outcome(hops[hop], tmp_path / "r", "--prompt-in", "metadata")
    assert (row["outcome"], row.get("status")) == ends


@pytest.mark.parametrize(
    ("hop", "ends"),
    [("grpc", "too_large"), ("grpc default", "too_large"), ("grpc nghttp2", "ok"), ("grpc oghttp2", "ok")],
)
def test_split_into_values_only_the_sum_counts(
    hops: dict[str, str], tmp_path: Path, hop: str, ends: str
) -> None:
    row = outcome(hops[hop], tmp_path / "r", "--prompt-in", "split-metadata", "--prompt-parts", 16)
    assert row["outcome"] == ends
