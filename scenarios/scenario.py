"""What a scenario is: a question, what it needs, its settings, and the function that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.plan import read_plan_file
from scenarios.finding import Finding

MIXTURES = frozenset({"class", "classes", "class_share", "turns"})
"""Of a plan file: with these a run no longer has the one length, or the one number in flight, that is asked for."""
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Setting:
    """One value that a person may set. ``None`` as the default: not set. ``kind`` converts the text."""

    kind: type[int] | type[float] | type[bool] | type[str]
    default: int | float | bool | str | None
    meaning: str

    def parse(self, name: str, text: str) -> int | float | bool | str:
        """The value that *text* says. Raises UsageError naming the setting, the text and what is allowed."""
        try:
            return TRUTH[text.lower()] if self.kind is bool else self.kind(text)
        except (ValueError, KeyError):
            words = {int: "a whole number", float: "a number", bool: "true or false"}
            raise UsageError(f"--set {name}={text}: {words[self.kind]} is needed") from None


@dataclass(frozen=True)
class Context:
    """What a scenario is run with. Nothing may be written outside *out*.

    ``endpoints``: base URL by the name that the scenario gave it. ``simulated``: those that are the built-in
    simulator, started for this run. ``consent``: the user said that the endpoints are theirs to test.
    ``say`` tells a person how far it is. ``allow_hooks``: the user said that commands in settings may run.
    """

    endpoints: Mapping[str, str]
    settings: Mapping[str, Any]
    out: Path
    simulated: frozenset[str] = frozenset()
    consent: bool = False
    say: Callable[[str], None] = lambda _: None
    allow_hooks: bool = False


@dataclass(frozen=True)
class Scenario:
    """A question about a deployment.

    ``endpoints``: what each endpoint that it needs stands for, by name; a missing one is replaced by the
    built-in simulator, started with the options that ``simulators`` has for the name. ``alone``: endpoints that
    may be named without the others. ``needs_endpoints``: whether any is asked under these settings; where
    none is, a model answers (``models_alone``), or else runs that exist are judged. ``check`` raises UsageError for
    settings that cannot be, before anything is started or asked. ``decides``: keys that a plan file may not hold,
    since they would change what is varied or how long it lasts.
    """

    name: str
    experiment: str
    question: str
    endpoints: Mapping[str, str]
    settings: Mapping[str, Setting]
    run: Callable[[Context], Finding]
    simulators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    needs_endpoints: Callable[[Mapping[str, Any]], bool] = lambda _: True
    models_alone: bool = True
    check: Callable[[Mapping[str, Any]], object] = lambda _: None
    decides: frozenset[str] = frozenset()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raises UsageError as ``check`` does, and for a plan file that holds what the scenario decides itself."""
        self.check(settings)
        held = self.decides & read_plan_file(Path(settings["plan"])).keys() if settings.get("plan") else ()
        if held:
            raise UsageError(
                f"--set plan={settings['plan']} holds {', '.join(sorted(held))}: scenario {self.name} decides that"
            )

    def settings_from(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The defaults with *texts* over them. Raises UsageError naming an unknown setting and the choices."""
        unknown = [name for name in texts if name not in self.settings]
        if unknown:
            choices = ", ".join(self.settings)
            raise UsageError(f"scenario {self.name} has no setting {unknown[0]!r}; choices: {choices}")
        given = {name: self.settings[name].parse(name, text) for name, text in texts.items()}
        return {name: setting.default for name, setting in self.settings.items()} | given
