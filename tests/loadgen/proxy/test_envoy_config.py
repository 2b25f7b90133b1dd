"""The configuration: what options write, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli import main
from loadgen.errors import UsageError
from loadgen.proxy.envoy_config import ENVOY_DEFAULTS, EnvoyOptions, Limits, envoy_config

LOG = Path("log.jsonl")
BACKEND = "http://127.0.0.1:8000"


def config(**options: Any) -> dict[str, Any]:
    return envoy_config(EnvoyOptions((BACKEND,), **options), LOG)


def manager(found: dict[str, Any], listener: int = 0) -> dict[str, Any]:
    chain = found["static_resources"]["listeners"][listener]["filter_chains"][0]
    inner: dict[str, Any] = chain["filters"][0]["typed_config"]
    return inner


def route(found: dict[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = manager(found)["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    return inner


def test_by_default_streams_never_end_and_limits_are_raised() -> None:
    found = config()
    assert route(found)["timeout"] == "0s"
    assert manager(found)["max_request_headers_kb"] == 1024
    assert manager(found)["common_http_protocol_options"] == {"max_headers_count": 1000}
    breakers = found["static_resources"]["clusters"][0]["circuit_breakers"]["thresholds"][0]
    assert set(breakers.values()) == {1_000_000}
    assert found["layered_runtime"]["layers"][0]["static_layer"] == {
        "envoy.reloadable_features.http2_use_oghttp2": True
    }


def test_envoys_own_defaults_are_left_alone_where_asked() -> None:
    found = config(limits=ENVOY_DEFAULTS)
    assert "timeout" not in route(found)
    for name in (
        "max_request_headers_kb",
        "common_http_protocol_options",
        "stream_idle_timeout",
        "drain_timeout",
    ):
        assert name not in manager(found)
    assert "circuit_breakers" not in found["static_resources"]["clusters"][0]


def test_everything_binds_loopback_alone() -> None:
    found = envoy_config(EnvoyOptions((BACKEND,), ("grpc://127.0.0.1:9",)), LOG)
    addresses = [
        found["admin"]["address"],
        *(one["address"] for one in found["static_resources"]["listeners"]),
    ]
    assert {one["socket_address"]["address"] for one in addresses} == {"127.0.0.1"}


def test_fronts_are_http_of_both_versions_and_grpc_alone_where_asked() -> None:
    found = envoy_config(EnvoyOptions((BACKEND,), ("grpc://127.0.0.1:9", "grpc://127.0.0.1:10")), LOG)
    assert [manager(found, i)["codec_type"] for i in (0, 1)] == ["AUTO", "HTTP2"]
    http, grpc = found["static_resources"]["clusters"]
    assert "http2_protocol_options" in json.dumps(grpc)
    assert "http2_protocol_options" not in json.dumps(http)
    assert len(grpc["load_assignment"]["endpoints"][0]["lb_endpoints"]) == 2


def test_unix_sockets_serve_on_both_sides() -> None:
    found = envoy_config(EnvoyOptions(("unix:/a/b.sock",), listen="unix:/c/d.sock"), LOG)
    assert found["static_resources"]["listeners"][0]["address"] == {"pipe": {"path": "/c/d.sock"}}
    assert "/a/b.sock" in json.dumps(found["static_resources"]["clusters"])


def test_durations_are_written_as_envoy_reads_them() -> None:
    found = config(limits=Limits(route_timeout_s=1.5, max_connection_duration_s=3600, drain_timeout_s=0.0005))
    assert route(found)["timeout"] == "1.5s"
    assert manager(found)["common_http_protocol_options"]["max_connection_duration"] == "3600s"
    assert manager(found)["drain_timeout"] == "0.0005s"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"upstreams": ()}, "--upstream"),
        ({"upstreams": ("ftp://x:1",)}, "not an upstream"),
        ({"upstreams": ("http://a:70000",)}, "not an upstream"),
        ({"upstreams": (BACKEND, "https://127.0.0.1:1")}, "of one kind"),
        ({"upstreams": (BACKEND,), "listen": "localhost"}, "not an address"),
        ({"upstreams": (BACKEND,), "tls_cert": Path("c")}, "go together"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        envoy_config(EnvoyOptions(**options), LOG)


def test_the_command_prints_its_configuration_and_its_snippet(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--route-timeout", "7s", "--max-requests", "9", "--http2-codec", "nghttp2"]
    assert main(["envoy", "--upstream", BACKEND, *options, "--print-config"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert route(found)["timeout"] == "7s"
    assert '"max_requests": 9' in json.dumps(found)
    assert '"envoy.reloadable_features.http2_use_oghttp2": false' in json.dumps(found)
    assert main(["envoy", "--snippet"]) == 0
    assert "us_rx_body_beg_us" in capsys.readouterr().out


def test_the_command_refuses_to_run_without_an_upstream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envoy", "--print-config"]) == 2
    assert "--upstream" in capsys.readouterr().err
