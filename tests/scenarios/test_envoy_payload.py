"""Scenario envoy-payload: its cells and its judgement on planted splits; nothing is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ExitCode, UsageError
from loadgen.proxy.joined import Joined
from loadgen.proxy.stages import Split
from scenarios.envoy_payload import (
    ENVOY_PAYLOAD,
    Cell,
    Collected,
    cells_of,
    judge,
    load_options,
    protocols_of,
)
from scenarios.sending import Sent

MS = 1_000_000


def settings(**texts: str) -> dict[str, Any]:
    return ENVOY_PAYLOAD.settings_from(texts)


def collected(n: int = 20, left_ms: float = 0.5, **facts: Any) -> Collected:
    """Two cells of one size: direct ones take 40 ms, those through Envoy 41 and what is left."""
    found = Collected()
    stages = {"client_to_envoy": 1 * MS, "backend_to_headers": 40 * MS}
    through = Split(stages, 41 * MS + round(left_ms * MS))
    for cell, split in (
        (Cell("direct", "http", "body", 1024), Split({"backend_to_headers": 40 * MS}, 40 * MS)),
        (Cell("proxied", "http", "body", 1024), through),
    ):
        summary = {"validity": {"reasons": []}, "outcomes": {"ok": n, **facts.get("outcomes", {})}}
        found.sent[cell] = Sent(Path(cell.name), facts.get("code", 0), summary)
        found.joined[cell] = Joined({f"r-{i}": split for i in range(n)}, n, by_log=n)
    return found


def test_cells_are_sizes_by_carriers_by_routes() -> None:
    cells = cells_of(settings(sizes="1024, 8192"), ["http", "grpc"])
    assert len(cells) == len(set(cells)) == 16
    assert Cell("proxied", "grpc", "headers", 8192) in cells


@pytest.mark.parametrize("texts", [{"sizes": "1k"}, {"sizes": "0"}, {"carriers": "trailers"}, {"sizes": ""}])
def test_what_is_no_size_or_carrier_is_refused(texts: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--set"):
        cells_of(settings(**texts), ["http"])


def test_headers_or_metadata_carry_the_prompt_where_asked() -> None:
    options = load_options(settings(), Cell("direct", "http", "body", 8192))
    assert (options["prompt_in"], options["endpoint"], options["input_len"]) == ("body", "chat", 8192)
    options = load_options(settings(), Cell("direct", "grpc", "headers", 8192))
    assert (options["prompt_in"], options["endpoint"], options["input_len"]) == (
        "metadata",
        "vllm-grpc",
        8192,
    )


def test_protocols_are_those_with_a_backend_and_the_users_own_envoy() -> None:
    both = {"http": "http://a", "grpc": "grpc://a"}
    assert protocols_of(settings(), both) == ["http", "grpc"]
    assert protocols_of(settings(), {"http": "http://a"}) == ["http"]
    assert protocols_of(settings(proxied_grpc="grpc://e"), both) == ["grpc"]
    assert protocols_of(settings(protocols="grpc"), both) == ["grpc"]
    for texts in ({"protocols": "grpc"}, {"protocols": "smtp"}):
        with pytest.raises(UsageError, match="--set protocols"):
            protocols_of(settings(**texts), {"http": "http://a"})


def test_a_whole_join_is_valid_and_its_stages_sum_to_ttft() -> None:
    finding = judge(collected())
    assert finding.valid
    assert finding.exit_code is ExitCode.GOOD
    through = next(cell for cell in finding.answer["cells"] if cell["route"] == "proxied")
    assert sum(stage["mean_ms"] for stage in through["stages"]) == pytest.approx(41.5)
    assert finding.answer["cost_of_envoy_ms"] == {"http-body-1024": pytest.approx(1.5)}
    assert finding.numbers["unexplained_abs_ms_p99"].value == pytest.approx(0.5)
    interval = finding.numbers["proxied-http-body-1024-client_to_envoy_ms"]
    assert interval.low is None
    assert "insufficient" in (interval.why or "")
    assert "unexplained" in finding.in_words


def test_a_record_without_envoys_points_makes_it_invalid() -> None:
    found = collected()
    found.joined[Cell("proxied", "http", "body", 1024)].unjoined.append("r-9")
    finding = judge(found)
    assert not finding.valid
    assert "Envoy's time points" in finding.why_not[0]


def test_unanswered_requests_and_interruptions_stand_against_it() -> None:
    assert "3 too_large" in judge(collected(outcomes={"too_large": 3})).why_not[0]
    stopped = judge(collected(code=130))
    assert stopped.exit_code is ExitCode.INTERRUPTED
    assert "interrupted" in stopped.why_not[0]


def test_nothing_answered_has_no_figures() -> None:
    assert judge(Collected()).in_words == "No request through Envoy was answered."
