"""The plan: command line and file fill one model; what is wrong is said in one line that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.plan import build_plan, is_loopback, plan_to_json

S = 1_000_000_000
POISSON = {"arrival": "poisson", "request_rate": 5, "num_requests": 10}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"base_url": "127.0.0.1:8000"}, "not an endpoint: '127.0.0.1:8000'"),
    ({"base_url": "ftp://h"}, "not an endpoint: 'ftp://h'"),
    ({"base_url": "http://"}, "not an endpoint"),
    ({"base_url": "http://[::1"}, "base_url"),
    (
        {"base_url": "http://h", "header": {"Content-Length": "3"}},
        "header content-length is loadgen's to set",
    ),
    (
        {"base_url": "http://h", "header": {"Host": "h", "Transfer-Encoding": "chunked"}},
        "header host, transfer-encoding",
    ),
    ({**POISSON, "concurrency": 3}, "--arrival and --concurrency exclude each other"),
    ({**POISSON, "trace": "x.csv"}, "--trace and --arrival exclude each other"),
    ({**POISSON, "window": "0:5s"}, "need --trace"),
    ({**POISSON, "speedup": 2}, "need --trace"),
    ({"trace": "x.csv", "window": "5s"}, "not a window: '5s'"),
    ({"arrival": "poisson", "num_requests": 3}, "--arrival needs --request-rate"),
    ({"arrival": "poisson", "request_rate": 3}, "--arrival needs --num-requests or --duration"),
    ({**POISSON, "burstiness": 2}, "--burstiness goes with --arrival gamma"),
    ({"concurrency": 3, "num_requests": 9, "max_concurrency": 2}, "leave --max-concurrency out"),
    ({"concurrency": 3}, "--concurrency needs --num-requests, --duration or --trace"),
    ({**POISSON, "request_rate": 0}, "request_rate = 0"),
    ({**POISSON, "request_rate": "fast"}, "request_rate = 'fast'"),
    ({**POISSON, "num_requests": 0}, "num_requests = 0"),
    ({**POISSON, "max_error_rate": 2}, "max_error_rate = 2"),
    ({**POISSON, "seed": -1}, "seed = -1"),
    ({**POISSON, "request_timeout": "0s"}, "request_timeout"),
    ({**POISSON, "drain_timeout": "soon"}, "not a duration: 'soon'"),
    ({**POISSON, "usage": "some"}, "usage = 'some'"),
    ({**POISSON, "slo": ["ttfb=3"]}, "ttfb"),
    ({**POISSON, "limits": {"lag_p99_ns": "x"}}, "not a duration: 'x'"),
    ({**POISSON, "limits": {"lag": 1}}, "limits.lag"),
    ({"request_rat": 3}, "unknown plan key 'request_rat' (known: "),
]


@pytest.mark.parametrize(
    ("options", "words"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_wrong_is_one_line_that_names_it(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        build_plan(options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plan_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    for content, words in (
        (None, "No such file"), (b"a = ", "not TOML"), (b"\xff", "not TOML"), (b"seed = -1\n", "seed = -1"),
        (b"sede = 1\n", "unknown plan key 'sede'"),
    ):  # fmt: skip
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError) as error:
            build_plan({}, path)
        assert str(path) in str(error.value)
        assert words in str(error.value)
        assert "\n" not in str(error.value)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'arrival = "poisson"\nrequest_rate = 5\nduration = "2m"\nseed = 3\n[limits]\nlag_p99_ns = "20ms"\n'
    )
    plan = build_plan({"seed": 9}, path)
    assert (plan.seed, plan.request_rate, plan.duration, plan.limits.lag_p99_ns) == (
        9,
        5,
        120 * S,
        20_000_000,
    )


def test_plan_json_has_units_and_no_secrets() -> None:
    headers = {"Authorization": "Bearer s3cret", "X-Api-Key": "s3cret", "Cookie": "s3cret", "X-Team": "red"}
    row = plan_to_json(build_plan({**POISSON, "header": headers, "request_timeout": "90s"}))
    assert row["request_timeout_ns"] == 90 * S
    assert "request_timeout" not in row
    assert row["header"]["X-Team"] == "red"
    assert "s3cret" not in str(row)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:1", True), ("http://127.0.0.1", True), ("http://127.8.9.1:1", True),
        ("http://[::1]:1", True), ("unix:/run/s", True),
        ("https://LOCALHOST", True), ("http://10.0.0.1", False), ("http://0.0.0.0", False),
        ("http://localhost.example", False), ("http://127.evil.example", False), ("http://me@10.0.0.1", False),
    ],
)  # fmt: skip
def test_only_loopback_needs_no_consent(url: str, local: bool) -> None:
    assert is_loopback(url) is local
