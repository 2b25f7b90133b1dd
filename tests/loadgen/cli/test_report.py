import argparse
import io
import json

import pytest

from loadgen.cli.report import add_arguments, run
from loadgen.errors import UsageError
from loadgen.report.summary import write_reports
from loadgen.report.terminal import number, print_report, printable
from tests.loadgen.analysis.run_builder import RunBuilder, not_sent, request


@pytest.fixture
def directory(tmp_path):
    builder = RunBuilder(
        tmp_path / "run", options={"slo": ["ttft=500ms", "ttft@p99=300ms"], "warmup_ns": 1000}
    )
    for i in range(40):
        builder.add(request(i, i * 100, class_name="chat", chunks=[i * 100 + 50, i * 100 + 70], n_input=5))
    builder.add(
        request(40, 4000, class_name="chat", outcome="status_error", status=500, error="[red]\x1b[2Jboom")
    )
    builder.add(not_sent(41, 4100, "no file descriptor"))
    return builder.write()


def report(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(word) for word in words]))


def test_the_report_begins_with_what_was_asked_and_sent_and_the_verdict_with_its_reason(directory, capsys):
    code = report(directory)
    lines = capsys.readouterr().out.splitlines()
    assert code == 3
    assert lines[0].strip() == "What was asked, what was sent"
    verdict = next(i for i, line in enumerate(lines) if line.startswith("INVALID"))
    assert "1 of 42 rows" in lines[verdict + 1]
    assert verdict < next(i for i, line in enumerate(lines) if line.startswith("Latency"))
    assert any(line.startswith("FAIL ttft@p99=300ms") for line in lines)


def test_the_report_is_plain_and_within_80_columns_when_it_is_no_terminal(directory):
    out = io.StringIO()
    print_report(write_reports(directory), out)
    text = out.getvalue()
    assert "\x1b" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "[red]\\x1b[2Jboom" in text  # foreign text is shown, not obeyed


def test_json_prints_the_summary_that_is_on_disk(directory, capsys):
    report(directory, "--json")
    assert json.loads(capsys.readouterr().out) == json.loads((directory / "summary.json").read_text())


def test_chosen_percentiles_are_shown(directory, capsys):
    report(directory, "--percentiles", "25,99.9")
    out = capsys.readouterr().out
    assert "p25" in out
    assert "p99.9" in out
    assert "p95" not in out


@pytest.mark.parametrize("text", ["", "50,", "p50", "0", "101", "nan"])
def test_a_percentile_that_is_none_is_refused(directory, text):
    with pytest.raises(UsageError, match="--percentiles"):
        report(directory, f"--percentiles={text}")


def test_a_directory_that_is_no_run_is_refused_and_nothing_is_written_there(tmp_path):
    with pytest.raises(UsageError, match=r"plan\.json"):
        report(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.012345, "0.01235"), (12345.6, "12,346"), (3, "3"), (1e7, "10,000,000")],
)
def test_a_figure_has_as_many_digits_as_help(value, shown):
    assert number(value) == shown


def test_long_foreign_text_is_cut_and_stays_on_one_line():
    shown = printable("a\n\u202eb" + "x" * 500)
    assert shown.startswith("a\\n\\u202ebxxx")
    assert len(shown) == 200
