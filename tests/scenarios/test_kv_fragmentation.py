"""E13 against closed forms: blocks of one token waste nothing, large ones and reservations exactly what they must."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.class_compare import Estimate
from loadgen.analysis.kv_blocks import held_blocks, present_at, read_scrapes
from loadgen.analysis.load import load_run
from loadgen.collect_kv import KvFile, KvScraper, kv_of_page
from loadgen.errors import UsageError
from loadgen.record import Outcome
from scenarios.finding import Finding
from scenarios.kv_finding import amount, judge
from scenarios.kv_fragmentation import KV_FRAGMENTATION, run
from scenarios.scenario import Context
from scenarios.sending import Sent
from tests.loadgen.analysis.run_builder import MS, T0_NS, RunBuilder, request

OUTPUT = 17
PAGE = """# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} {usage}
vllm:num_preemptions_total{{engine="{engine}",model_name="m"}} 2.0
vllm:cache_config_info{{block_size="{size}",engine="{engine}",num_gpu_blocks="{blocks}"}} 1.0
"""


def page(held: float, blocks: int | None = 101, size: int = 16, engine: int = 0) -> str:
    """As vLLM renders it: the null block is in the number of blocks and not in the usage."""
    usage = held / (blocks - 1) if blocks else 0.0
    return PAGE.format(engine=engine, usage=usage, size=size, blocks=blocks)


def asked(out: Path, **settings: object) -> Context:
    fixed = {"virtual": "true", "num_requests": "160", "output_len": str(OUTPUT), "noise": "0"}
    texts = fixed | {name: str(value) for name, value in settings.items()}
    return Context({}, KV_FRAGMENTATION.settings_from(texts), out)


def found_with(tmp_path_factory: pytest.TempPathFactory, **settings: object) -> tuple[Finding, Path]:
    out = tmp_path_factory.mktemp("kv")
    return run(asked(out, **settings)), out


@pytest.fixture(scope="module")
def coarse(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finding, Path]:
    return found_with(tmp_path_factory, block_size=128, scrapes=45)


def test_blocks_of_one_token_leave_nothing_unused(tmp_path: Path) -> None:
    finding = run(asked(tmp_path, block_size=1, scrapes=55))
    assert finding.valid, finding.why_not
    for mix in ("uniform", "mixed"):
        assert finding.answer[mix]["whole_blocks"] == "little"
        assert finding.answer[mix]["server_holds"] == "whole blocks"
        assert finding.numbers[f"unused_whole_blocks_{mix}"].value == 0
        assert finding.numbers[f"unused_held_{mix}"].value == 0
    assert finding.answer["uniform"]["server"] == "little"


def test_lengths_that_fill_their_blocks_leave_the_started_ones_share(coarse: tuple[Finding, Path]) -> None:
    """At step k a prompt of some whole blocks has k tokens in one block more: 128 - k unused of L + 128."""
    finding, out = coarse
    assert finding.valid, finding.why_not
    empty = np.mean([128 - k for k in range(1, OUTPUT)])
    for mix in ("uniform", "mixed"):
        lengths = load_run(out / mix).rows.number("n_input")
        assert set(lengths) == ({512.0} if mix == "uniform" else {128.0, 256.0, 512.0, 1024.0})
        wanted = empty / (lengths.mean() + 128)
        number = finding.numbers[f"unused_whole_blocks_{mix}"]
        assert number.value == pytest.approx(wanted, rel=1e-12)
        assert finding.answer[mix]["whole_blocks"] == "much"
        assert number.low - 1e-12 <= wanted <= number.high + 1e-12
        reserved = 1 - (lengths.mean() + np.mean(range(1, OUTPUT))) / (1024 + OUTPUT)
        assert finding.numbers[f"unused_reserved_{mix}"].value == pytest.approx(reserved, rel=1e-12)
    by_size = finding.answer["uniform"]["unused_by_block_size"]
    assert by_size["16"] == pytest.approx(np.mean(range(16)) / 528, rel=1e-12)
    assert by_size["1"] == 0


def test_what_the_server_says_agrees_with_whole_blocks(coarse: tuple[Finding, Path]) -> None:
    finding, _ = coarse
    assert finding.answer["uniform"]["server_holds"] == "whole blocks"
    assert finding.answer["uniform"]["server"] == "much"
    assert finding.numbers["held_over_whole_blocks_uniform"].value == 1
    held = finding.numbers["unused_held_uniform"]
    assert held.low < finding.numbers["unused_whole_blocks_uniform"].value < held.high
    assert finding.numbers["fits_by_held_uniform"].value == pytest.approx(8192 / 5)
    assert finding.numbers["fits_reserved_uniform"].value == pytest.approx(8192 * 128 / (1024 + OUTPUT))


def test_a_server_that_reserves_the_longest_length_is_told_from_whole_blocks(tmp_path: Path) -> None:
    finding = run(asked(tmp_path, reserve="true", scrapes=45))
    assert finding.valid, finding.why_not
    assert finding.answer["uniform"]["server_holds"] == "more than whole blocks"
    assert (finding.answer["uniform"]["whole_blocks"], finding.answer["uniform"]["server"]) == (
        "little",
        "much",
    )
    blocks = math.ceil((1024 + OUTPUT) / 16)
    assert finding.numbers["held_over_whole_blocks_uniform"].value == pytest.approx(blocks / 33)
    assert finding.numbers["fits_by_held_mixed"].value == pytest.approx(8192 / blocks)


@given(st.integers(2, 1 << 20), st.data())
def test_the_blocks_are_counted_exactly_with_and_without_a_null_block(blocks: int, data: Any) -> None:
    held = data.draw(st.integers(0, blocks - 2))
    assert held_blocks([(held / (blocks - 1), blocks, 16)]) == held
    assert held_blocks([(held / blocks, blocks, 16)]) == held


def test_a_page_is_read_engine_by_engine_and_what_it_lacks_is_null() -> None:
    both = kv_of_page(page(20) + page(40, blocks=201, engine=1))
    assert both == {"engines": [(0.2, 101, 16), (0.2, 201, 16)], "preemptions": 4.0}
    assert held_blocks(both["engines"]) == 60
    assert kv_of_page("sglang:token_usage 0.5\n") == {"engines": [], "preemptions": None}
    assert math.isnan(held_blocks([]))
    assert math.isnan(held_blocks(kv_of_page(page(0, blocks=None))["engines"]))


def test_the_page_of_a_real_vllm_is_read(shared: Path) -> None:
    text = (shared / "servers/captures/vllm_metrics.txt").read_text()
    assert kv_of_page(text)["engines"] == [(0.0, 16384, 128)]


def test_a_scraper_writes_what_came_and_what_did_not(tmp_path: Path) -> None:
    answers = iter([page(7)])

    def get(url: str) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise OSError(f"{url}: refused") from None

    scraper = KvScraper("http://127.0.0.1:1/metrics", tmp_path / "kv.jsonl", 100.0, get)
    with scraper:
        pass
    scrapes = read_scrapes(tmp_path / "kv.jsonl", 0)
    assert list(scrapes.held) == [7]
    assert (scrapes.block_size, scrapes.blocks, scrapes.preempted) == (16, 101, 0)
    assert all(why == "http://127.0.0.1:1/metrics: refused" for why in scrapes.failures)


def recorded(out: Path, pages: list[tuple[float, str]], **facts: Any) -> dict[str, Sent]:
    """Two requests of 20 and 30 prompt tokens: tokens each 100 ms, from 100 and 350 ms on; the same for both mixes."""
    sent = {}
    for name in ("uniform", "mixed"):
        builder = RunBuilder(out / name)
        for index, (n_input, due) in enumerate(((20, 0.0), (30, 250.0))):
            chunks = [due + 100 + 100 * k for k in range(6)]
            builder.add(request(index, due, chunks=chunks, n_input=n_input, **facts))
        directory = builder.write()
        file = KvFile(out / f"kv-{name}.jsonl", "made up")
        for at_ms, text in pages:
            file.page(T0_NS + round((at_ms - 1) * MS), T0_NS + round((at_ms + 1) * MS), text)
        file.close()
        sent[name] = Sent(directory, 0, {"validity": {"reasons": []}})
    return sent


def test_tokens_at_an_instant_are_the_prompt_and_what_has_come(tmp_path: Path) -> None:
    instants = (-50.0, 50.0, 150.0, 300.0, 460.0, 560.0, 750.0)
    recorded(tmp_path, [(at, page(3)) for at in instants])
    rows = load_run(tmp_path / "uniform").rows
    scrapes = read_scrapes(tmp_path / "kv-uniform.jsonl", T0_NS)
    present = present_at(rows, scrapes, 16)
    assert list(present.requests) == [0, 0, 1, 1, 2, 2, 1]
    assert list(present.tokens) == [0, 0, 21, 23, 24 + 32, 25 + 33, 35]
    assert list(present.whole) == [0, 0, 2, 2, 4, 5, 3]
    assert list(present.settled) == [True, False, True, False, True, True, True]


def test_a_server_without_the_counters_is_said_to_be_silent_and_no_zero_stands_for_it(tmp_path: Path) -> None:
    context = asked(tmp_path, virtual="false", block_size=16)
    sent = recorded(tmp_path, [(150.0, "llamacpp:kv_cache_usage_ratio 0\n")])
    finding = judge(sent, tmp_path, context.settings)
    assert finding.answer["mixed"]["server"] == "the server does not say"
    for name in ("unused_held_mixed", "blocks_held_mixed", "fits_by_held_mixed", "fits_reserved_mixed"):
        assert finding.numbers[name].value is None
        assert "does not say" in str(finding.numbers[name].why)
    steps = sum(sum(range(n + 1, n + 6)) for n in (20, 30))
    whole = 16 * sum(math.ceil((n + k) / 16) for n in (20, 30) for k in range(1, 6))
    assert finding.numbers["unused_whole_blocks_mixed"].value == pytest.approx(1 - steps / whole)
    assert "insufficient data: 2 of about" in str(finding.numbers["unused_whole_blocks_mixed"].why)


def test_blocks_that_others_hold_and_prompts_from_the_cache_are_said(tmp_path: Path) -> None:
    context = asked(tmp_path, virtual="false")
    sent = recorded(tmp_path, [(-50.0, page(9)), (150.0, page(11))], n_cached=16)
    finding = judge(sent, tmp_path, context.settings)
    assert "uniform: 9 blocks were held before anything was sent: others use the server" in finding.why_not
    assert any("64.0% of the prompt tokens came from the prefix cache" in note for note in finding.notes)
    only = judge({"uniform": sent["uniform"]}, tmp_path, context.settings)
    assert "interrupted before the mixed lengths were sent" in only.why_not


def test_a_length_that_the_server_refuses_is_said_and_stands_against_the_answer(tmp_path: Path) -> None:
    settings = {"num_requests": 200, "max_len": 600, "mixed_lens": "128,256,512,1024"}
    finding = run(asked(tmp_path, **settings))
    assert "mixed: no prompt of 1024 tokens was answered: it is in no share" in finding.why_not
    assert any("requests failed" in note for note in finding.notes)


def test_of_shared_blocks_nothing_is_told() -> None:
    assert amount(Estimate(-3.1, -3.2, -3.0), 0.1) == "cannot tell"
    assert amount(Estimate(0.05, 0.04, 0.06), 0.1) == "little"


def test_without_an_answer_nothing_is_a_number_and_the_finding_is_not_valid(tmp_path: Path) -> None:
    sent = recorded(tmp_path, [(150.0, page(11))], outcome=Outcome.STATUS_ERROR)
    finding = judge(sent, tmp_path, asked(tmp_path, virtual="false").settings)
    assert "mixed: no request was answered" in finding.why_not
    number = finding.numbers["unused_whole_blocks_mixed"]
    assert (number.value, number.why) == (None, "no requests to compare")
    assert "nan" not in finding.in_words


def test_settings_that_cannot_be_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name, value in (("mixed_lens", "128,x"), ("output_len", 1), ("material", 2), ("block_size", 0)):
        with pytest.raises(UsageError, match=name):
            run(asked(tmp_path / "out", **{name: value}))
    assert not (tmp_path / "out").exists()


def test_scrapes_lie_beside_the_run_as_lines_that_others_can_read(coarse: tuple[Finding, Path]) -> None:
    header, first, *_ = (coarse[1] / "kv-mixed.jsonl").read_text().splitlines()
    assert json.loads(header) == {"format": "loadgen.kv", "version": 1, "source": "engine model"}
    usage, blocks, size = json.loads(first)["engines"][0]
    assert (blocks, size) == (8192, 128)
    assert usage * blocks >= 8  # at instant 0 the first eight are let in
