"""E15: two classes under scheduler A and scheduler B: who kept its promise, who was passed over, what it cost.

Both schedulers get one schedule. With two endpoints each is asked in turn. One endpoint is asked twice when
``switch`` names a command that changes its scheduler in between (it runs only after --allow-hooks). With
``virtual=true`` nobody is asked: the engine model answers, under the policies that ``a`` and ``b`` name.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.errors import ExitCode, UsageError
from scenarios.finding import Finding
from scenarios.priority_finding import HIGH, LOW, judge
from scenarios.scenario import Context, Scenario, Setting
from scenarios.searching import modelled_plan
from scenarios.sending import send

A, B = "a", "b"
SWITCH_LIMIT_S = 600
SEATS, REQUESTS, VIRTUAL_REQUESTS = 4, 300, 6000

SETTINGS: dict[str, Setting] = {
    "request_rate": Setting(float, 9.0, "mean requests a second of both classes, Poisson arrivals"),
    "num_requests": Setting(int, None, "requests to send to each scheduler (default: 300; virtual: 6000)"),
    "high_share": Setting(float, 0.3, "the urgent class's part of the requests"),
    "input_len": Setting(str, "128", "prompt tokens of both classes, or a model as lognormal:512:1"),
    "output_len": Setting(str, "32", "output tokens of both classes, or a model"),
    "low_input_len": Setting(str, None, "prompt tokens of the less urgent class, if it is to differ"),
    "low_output_len": Setting(str, None, "output tokens of the less urgent class, if it is to differ"),
    "high_priority": Setting(int, 0, "body field `priority` of the urgent class (lower is more urgent)"),
    "low_priority": Setting(int, 10, "body field `priority` of the less urgent class"),
    "high_header": Setting(str, None, "header that tells the urgent class, as gateway=critical or x-tier=gold"),
    "low_header": Setting(str, None, "header that tells the less urgent class"),
    "high_slo": Setting(str, "ttft=800ms", "the urgent class's bound"),
    "low_slo": Setting(str, "ttft=5s", "the less urgent class's bound"),
    "a": Setting(str, None, "what to call scheduler A (default: fcfs without endpoints, else a)"),
    "b": Setting(str, None, "what to call scheduler B (default: priority without endpoints, else b)"),
    "switch": Setting(str, None, "command that switches endpoint a from A to B (needs --allow-hooks)"),
    "virtual": Setting(bool, False, "ask the engine model in virtual time; a and b are its policies"),
    "max_num_seqs": Setting(int, SEATS, "virtual: seats in the batch"),
    "seed": Setting(int, 0, "seed of arrivals and lengths"),
    "model": Setting(str, None, "model name (default: the only one that the endpoint lists)"),
    "endpoint": Setting(str, "chat", "what to ask: chat or completions"),
    "ignore_eos": Setting(bool, True, "ask the server to generate the full output length"),
    "api_key_file": Setting(str, None, "file with the key (else OPENAI_API_KEY)"),
    "request_timeout": Setting(str, None, "give a request up after this long, as 60s"),
    "plan": Setting(str, None, "TOML plan with further options of `loadgen run`; these settings override it"),
}  # fmt: skip
PASSED_ON = ("model", "endpoint", "ignore_eos", "api_key_file", "request_timeout", "plan")


def run(context: Context) -> Finding:
    """Send the schedule to both and compare. Raises UsageError for a switch without consent."""
    settings = context.settings
    names = names_of(context)
    if settings["virtual"]:
        directories = tuple(_simulate(context, name) for name in names)
        return judge(directories, settings)
    _check_switch(context)
    options = load_options(settings)
    first = send(context, A, options, name=names[0])
    if first.code == ExitCode.INTERRUPTED:
        return judge((first.directory,), settings, (first,))
    if settings["switch"]:
        _switch(context, settings["switch"])
    second = send(context, A if settings["switch"] else B, options, name=names[1])
    return judge((first.directory, second.directory), settings, (first, second))


def names_of(context: Context) -> tuple[str, str]:
    """The runs' directories: what the settings call the schedulers, else their policies or their endpoints."""
    known = context.settings["virtual"] or context.simulated
    default = ("fcfs", "priority") if known else (A, B)
    names = context.settings["a"] or default[0], context.settings["b"] or default[1]
    if names[0] == names[1] or any(not name or "/" in name or name.startswith(".") for name in names):
        raise UsageError(f"a and b must be two different plain names, not {names[0]!r} and {names[1]!r}")
    return names


def class_texts(settings: Mapping[str, Any]) -> list[str]:
    """The two classes as `loadgen run --class` takes them."""
    if not 0 < settings["high_share"] < 1:
        raise UsageError(f"--set high_share={settings['high_share']:g}: a share between 0 and 1 is needed")
    texts = []
    for name in (HIGH, LOW):
        text = f"{name}:priority={settings[f'{name}_priority']},slo={settings[f'{name}_slo']}"
        text += f",share={settings['high_share']}" if name == HIGH else ""
        text += f",header={header}" if (header := settings[f"{name}_header"]) else ""
        for length in ("input_len", "output_len"):
            own = settings.get(f"{name}_{length}") or settings[length]
            text += f",{length}={own}"
        texts.append(text)
    return texts


def load_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``loadgen run``."""
    options = {name: settings[name] for name in ("request_rate", "seed", *PASSED_ON)}
    options["num_requests"] = settings["num_requests"] or (
        VIRTUAL_REQUESTS if settings["virtual"] else REQUESTS
    )
    return options | {"arrival": "poisson", "class": class_texts(settings)}


def _check_switch(context: Context) -> None:
    if context.settings["switch"] and not context.allow_hooks:
        raise UsageError("--set switch=… runs a command on this machine: say --allow-hooks if that is meant")
    if context.settings["switch"] is None and B not in context.endpoints:
        raise UsageError("one endpoint alone needs --set switch=COMMAND; else name --endpoint b=URL as well")


def _switch(context: Context, command: str) -> None:
    """Run the user's own command; its end is when scheduler B is ready. Raises UsageError when it fails."""
    context.say(f"switch: {command}")
    try:
        done = subprocess.run(
            shlex.split(command), stdin=subprocess.DEVNULL, timeout=SWITCH_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the switch command failed: {error}") from None
    if done.returncode:
        raise UsageError(f"the switch command ended with {done.returncode}")


def _simulate(context: Context, policy: str) -> Path:
    from loadgen.simulator.config import EngineConfig
    from loadgen.simulator.virtual_run import virtual_run
    from loadgen.simulator.whatif import Fleet

    settings = context.settings
    config = EngineConfig(policy=policy, max_num_seqs=settings["max_num_seqs"], seed=settings["seed"])
    return virtual_run(modelled_plan(load_options(settings)), config, Fleet(), context.out / policy)[0]


PRIORITY_INVERSION = Scenario(
    name="priority-inversion",
    experiment="E15",
    question="Does scheduler B keep the urgent class from waiting behind the other better than A, and at what cost?",
    endpoints={A: "scheduler A (and B, with a switch command)", B: "scheduler B"},
    settings=SETTINGS,
    run=run,
    simulators={
        name: ("--scheduling-policy", policy, "--max-num-seqs", str(SEATS), "--enable-per-request-metrics")
        for name, policy in ((A, "fcfs"), (B, "priority"))
    },
    alone=frozenset({A}),
    needs_endpoints=lambda settings: not settings["virtual"],
    check=class_texts,
)
