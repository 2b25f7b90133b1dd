import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.slo import METRICS, Objective, bounds_of_class, parse_objectives


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft=500ms", ("ttft", 500_000_000, None, None)),
        ("ttft=0.5s", ("ttft", 500_000_000, None, None)),
        ("ttft=500", ("ttft", 500_000_000, None, None)),
        (" tpot = 50 ms ", ("tpot", 50_000_000, None, None)),
        ("interactive:ttft@p99=800ms", ("ttft", 800_000_000, "interactive", 0.99)),
        ("e2e_from_due@p99.9=3s", ("e2e_from_due", 3_000_000_000, None, 0.999)),
        ("team:a:itl=20", ("itl", 20_000_000, "team:a", None)),
        ("ttft:500", ("ttft", 500_000_000, None, None)),
        ("e2el:3000", ("e2e", 3_000_000_000, None, None)),
        ("e2el@p100=1e3", ("e2e", 1_000_000_000, None, 1.0)),
    ],
)
def test_an_objective_means_what_the_grammar_says(text, expected):
    (objective,) = parse_objectives([text])
    assert (objective.metric, objective.bound_ns, objective.class_name, objective.quantile) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "ttft", "ttft=", "=5", "latency=5ms", "ttft=5m", "ttft=-5", "ttft=0", "ttft=nan", "ttft=inf",
        "ttft=1e999", "ttft@=5", "ttft@99=5", "ttft@p0=5", "ttft@p101=5", ":ttft=5", "chat:ttft:500",
        "ttft:5 00", "ttft=5==6",
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line_that_names_it_and_the_choices(text):
    with pytest.raises(UsageError) as refused:
        parse_objectives([text])
    message = str(refused.value)
    assert repr(text) in message
    assert "ttft_from_due" in message
    assert "\n" not in message


def test_the_same_bound_stated_twice_is_refused():
    with pytest.raises(UsageError, match="repeats 'ttft=5ms'"):
        parse_objectives(["ttft=5ms", "ttft:6"])


def test_a_class_keeps_the_general_bounds_it_does_not_state_itself():
    objectives = parse_objectives(["ttft=1s", "tpot=50ms", "chat:ttft=200ms", "chat:ttft@p99=300ms"])
    chat = {o.metric: o.bound_ns for o in bounds_of_class(objectives, "chat")}
    other = {o.metric: o.bound_ns for o in bounds_of_class(objectives, None)}
    assert chat == {"ttft": 200_000_000, "tpot": 50_000_000}
    assert other == {"ttft": 1_000_000_000, "tpot": 50_000_000}


@given(
    st.sampled_from(METRICS),
    st.integers(1, 10**7),
    st.one_of(st.none(), st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)),
    st.one_of(st.none(), st.integers(1, 100)),
)
def test_what_is_written_in_the_grammar_reads_back(metric, bound_ms, class_name, percent):
    text = f"{class_name + ':' if class_name else ''}{metric}{f'@p{percent}' if percent else ''}={bound_ms}ms"
    quantile = float(f"{percent}e-2") if percent else None
    assert parse_objectives([text]) == (Objective(metric, bound_ms * 1_000_000, class_name, quantile, text),)
