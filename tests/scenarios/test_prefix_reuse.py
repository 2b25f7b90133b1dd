"""E4 on the engine model in virtual time: a prefix cache that works, and none."""

import pytest

from loadgen.errors import UsageError
from scenarios import prefix_reuse
from scenarios.prefix_reuse import PREFIX_REUSE, shares_of, verdict
from scenarios.scenario import Context


def asked(out, **settings):
    texts = {"virtual": "true", "num_requests": "400", "shares": "0,0.5", **settings}
    return prefix_reuse.run(Context({}, PREFIX_REUSE.settings_from(texts), out))


def test_a_prefix_cache_serves_the_planned_reuse_and_a_hit_is_sooner(tmp_path):
    finding = asked(tmp_path)
    none, half = finding.answer["share=0"], finding.answer["share=0.5"]
    assert (none["planned"], none["achieved"], none["hits"]) == (0, 0, 0)
    # all prompts but the first know half of their tokens
    assert half["planned"] == pytest.approx(0.5 * 399 / 400)
    assert half["achieved"] == pytest.approx(half["planned"], abs=0.01)
    assert half["verdict"] == "served"
    assert "comes sooner" in finding.in_words
    assert "insufficient data" in finding.numbers["ttft_ms_p50_miss_share=0.5"].why


def test_without_a_prefix_cache_the_planned_reuse_is_not_served(tmp_path):
    finding = asked(tmp_path, shares="0.5", prefix_caching="false")
    half = finding.answer["share=0.5"]
    assert half["planned"] == pytest.approx(0.5 * 399 / 400)
    assert (half["achieved"], half["hits"], half["verdict"]) == (0, 0, "not served")
    assert "cannot be told" in finding.in_words


def test_a_server_that_names_no_cached_tokens_leaves_the_verdict_open():
    assert verdict(0.5, None) == "cannot tell"
    assert verdict(0.5, 0.2) == "served in part"


@pytest.mark.parametrize("text", ["", "x", "0,1.5", "nan"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(UsageError, match="shares"):
        shares_of(text)
