"""E1: one command, one benchmark: how long until the first token, how fast from there on, how much at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.finding import Finding, Number
from scenarios.scenario import Context, Scenario, Setting
from scenarios.sending import Sent, send

ENDPOINT = "a"
PERCENTILES = ("p50", "p90", "p95", "p99")
NO_SAMPLES = "no samples of the server's KV cache were recorded with this run"
NO_ANSWER = "no request was answered"
LOAD = ("input_len", "output_len", "num_requests", "seed", "warmup", "slo")
TARGET = ("model", "endpoint", "ignore_eos", "api_key_file", "request_timeout", "plan")

Json = dict[str, Any]

SETTINGS: dict[str, Setting] = {
    "request_rate": Setting(float, 5.0, "mean requests a second, Poisson arrivals (open loop)"),
    "concurrency": Setting(int, None, "keep so many requests in flight instead (closed loop)"),
    "num_requests": Setting(int, 200, "requests to send"),
    "input_len": Setting(int, 512, "prompt tokens"),
    "output_len": Setting(int, 128, "output tokens"),
    "seed": Setting(int, 0, "seed of the arrivals"),
    "warmup": Setting(str, None, "leave requests due this early out of the figures, as 5s"),
    "slo": Setting(str, None, "bound that defines goodput, as ttft=500ms, or a gate, as ttft@p95=1s"),
    "model": Setting(str, None, "model name (default: the only one that the endpoint lists)"),
    "endpoint": Setting(str, "chat", "what to ask: chat or completions"),
    "ignore_eos": Setting(bool, False, "ask the server to generate the full output length"),
    "api_key_file": Setting(str, None, "file with the key (else OPENAI_API_KEY)"),
    "request_timeout": Setting(str, None, "give a request up after this long, as 60s"),
    "plan": Setting(str, None, "TOML plan with further options of `loadgen run`; these settings override it"),
}


def run(context: Context) -> Finding:
    """Send the load at endpoint ``a`` and give its figures."""
    return judge(send(context, ENDPOINT, load_options(context.settings)))


def load_options(settings: Mapping[str, Any]) -> Json:
    """The options of ``loadgen run``."""
    options = {name: settings[name] for name in (*LOAD, *TARGET)}
    if settings["concurrency"] is not None:
        return options | {"concurrency": settings["concurrency"]}
    return options | {"arrival": "poisson", "request_rate": settings["request_rate"]}


def judge(sent: Sent) -> Finding:
    """The finding of a run. A run without one good answer has no figures, and says so."""
    summary = sent.summary
    numbers = numbers_of(summary)
    answer = {
        name: numbers[name].value
        for name in ("prefill_latency_ms_p95", "decode_tokens_per_second", "max_active_kvcache_gb")
    }
    why_not = list(summary["validity"]["reasons"])
    if summary["interrupted"]:
        why_not.append("interrupted before the load was over")
    if not summary["measured"]["completed"]:
        why_not.append(NO_ANSWER)
    return Finding(
        answer=answer,
        in_words=_in_words(summary, numbers),
        numbers=numbers,
        why_not=tuple(why_not),
        notes=tuple(summary["notes"]),
        runs=(sent.directory.name,),
        codes=(sent.code,),
    )


def numbers_of(summary: Json) -> dict[str, Number]:
    """Every figure of the answer. Latencies in ms, with the summary's 95 % intervals where it has them."""
    ttft, tpot = summary["metrics"]["ttft"], summary["metrics"]["tpot"]
    numbers = {
        "prefill_latency_ms_p95": _latency(
            ttft, "p95", "TTFT p95 as the client sees it: queueing, prefill and the first token"
        ),
        "decode_tokens_per_second": decode_rate(summary),
        "max_active_kvcache_gb": Number(None, "GB", "largest KV cache in use at one instant", why=NO_SAMPLES),
    }
    for name, figures, words in (
        ("ttft", ttft, "first content minus first byte sent"),
        ("tpot", tpot, "(last - first content) / (output tokens - 1)"),
    ):
        for percentile in PERCENTILES:
            numbers[f"{name}_ms_{percentile}"] = _latency(figures, percentile, words)
    for name, key, unit, words in (
        ("qps", "request_throughput", "requests/s", "requests completed a second"),
        ("output_tokens_per_second", "output_throughput", "tokens/s", "output tokens of all requests a second"),
        ("total_tokens_per_second", "total_token_throughput", "tokens/s", "input and output tokens a second"),
    ):  # fmt: skip
        why = NO_ANSWER if summary[key] is None else "the summary has no interval for rates"
        numbers[name] = Number(summary[key], unit, words, why=why)
    if summary["request_goodput"] is not None:
        words = "requests a second that meet every bound of the SLO"
        numbers["goodput_qps"] = Number(summary["request_goodput"], "requests/s", words)
    return numbers


def decode_rate(summary: Json) -> Number:
    """Tokens a second of one stream while it decodes: 1000 / mean ITL in ms, each token counted once."""
    itl = summary["metrics"]["itl"]
    words = "tokens a second of one stream after its first token: 1 / mean ITL"
    if summary["itl_estimated"]:
        words += " (tokens a chunk estimated from the final usage)"
    if not itl["mean_ms"]:
        return Number(None, "tokens/s", words, why="no request has two output tokens apart in time")
    low, high, why = _interval(itl, "mean_ms")
    if low and high:
        return Number(1e3 / itl["mean_ms"], "tokens/s", words, 1e3 / high, 1e3 / low)
    return Number(1e3 / itl["mean_ms"], "tokens/s", words, why=why)


def _latency(figures: Json, percentile: str, words: str) -> Number:
    key = f"{percentile}_ms"
    if figures[key] is None:
        return Number(None, "ms", words, why=NO_ANSWER)
    low, high, why = _interval(figures, key)
    return Number(figures[key], "ms", words, low, high, why)


def _interval(figures: Json, key: str) -> tuple[float | None, float | None, str | None]:
    interval = figures.get("intervals", {}).get(key)
    if not interval:
        return None, None, "the summary has no interval for it"
    if "too_few" in interval:
        return (
            None,
            None,
            f"too few for an interval: {interval['have']} values, about {interval['need']} needed",
        )
    return interval["low"], interval["high"], None


def _in_words(summary: Json, numbers: Mapping[str, Number]) -> str:
    if not summary["measured"]["completed"]:
        return f"None of {summary['scheduled']} requests was answered."
    shown = {name: "-" if number.value is None else f"{number.value:.4g}" for name, number in numbers.items()}
    return (
        f"TTFT p95 {shown['prefill_latency_ms_p95']} ms; one stream decodes {shown['decode_tokens_per_second']} "
        f"tokens/s; {shown['qps']} requests/s and {shown['output_tokens_per_second']} output tokens/s in all; "
        f"{summary['completed']} of {summary['scheduled']} requests succeeded."
    )


BENCHMARK = Scenario(
    name="benchmark",
    experiment="E1",
    question="How fast is this endpoint: time to the first token, decode speed, throughput, KV memory?",
    endpoints={ENDPOINT: "the endpoint to measure"},
    settings=SETTINGS,
    run=run,
)
