"""What a plan's texts may say: its URL, and the little languages of its load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.plan import Plan

SCHEMES = ("http", "https", "grpc", "grpcs")
SCHEME_WORDS = "http://HOST:PORT, https://HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT or unix:PATH"


def check_base_url(plan: Plan) -> None:
    """Refuse what is no endpoint, and headers that are not the user's. Raises UsageError."""
    if plan.base_url is None:
        return
    url = urlsplit(plan.base_url)
    if url.scheme not in (*SCHEMES, "unix") or not (url.hostname or url.path):
        raise UsageError(f"not an endpoint: {plan.base_url!r} ({SCHEME_WORDS})")
    reserved = {name.lower() for name in plan.header} & {"content-length", "transfer-encoding", "host"}
    if reserved:
        raise UsageError(f"header {', '.join(sorted(reserved))} is loadgen's to set")


def check_words(plan: Plan) -> None:
    """The little languages of the load, read for their faults alone (imported late: numpy is slow to load)."""
    lengths = [(name, text) for one in (plan, *plan.classes) for name in ("input_len", "output_len")
               if (text := getattr(one, name)) is not None]  # fmt: skip
    profiles = [text for text in (plan.profile, *(one.profile for one in plan.classes)) if text is not None]
    if not (plan.step or lengths or profiles or plan.prefix_tree):
        return
    from traces.lengths import parse_length
    from traces.prefixes import parse_tree
    from traces.profiles import parse_profile
    from traces.steps import parse_step

    checks: list[tuple[str, Any, list[str]]] = [
        ("step", parse_step, plan.step),
        *((name.replace("_", "-"), parse_length, [text]) for name, text in lengths),
        ("prefix-tree", parse_tree, [plan.prefix_tree] if plan.prefix_tree is not None else []),
    ]
    checks.append(("profile", parse_profile, [text for text in profiles if not text.startswith("trace:")]))
    for name, parse, texts in checks:
        for text in texts:
            try:
                parse(text)
            except ValueError as error:
                raise UsageError(f"--{name}: {error}") from None
