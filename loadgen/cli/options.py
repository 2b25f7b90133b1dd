"""The plan's fields as command-line options: one source for both, so that they cannot drift apart."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import orjson
from pydantic.fields import FieldInfo

from loadgen.errors import UsageError
from loadgen.plan import Plan, build_plan

UNSET = argparse.SUPPRESS
TARGET_FIELDS = (
    "base_url", "endpoint", "model", "api_key_file", "header", "extra_body", "ignore_eos", "tls_ca", "tls_cert",
    "tls_key", "tls_server_name", "tls_insecure", "i_own_this_endpoint",
)  # fmt: skip
FLAGS = ("carry_answers", "ignore_eos", "ignore_retry_after", "i_own_this_endpoint", "tls_insecure")
LISTS = {"slo": "SLO", "sidecar": "HOST:PORT"}
"""Options that take several values, with what each is."""
REPEATED = {
    "header": "K=V", "keep_header": "NAME", "step": "NAME=VALUE", "classes": "NAME:K=V,…", "base_url": "URL",
    "target": "NAME=URL,…", "response_field": "ROLE=PATH", "tensor": "ROLE=NAME",
}  # fmt: skip
"""Options that may be given again and again."""


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """``--plan FILE`` and an option a field; what is not given is absent from the namespace."""
    parser.add_argument(
        "--plan",
        type=Path,
        default=None,
        metavar="FILE",
        help="TOML plan, or one that comes with loadgen, as retry-storm; options override it",
    )
    parser.add_argument(
        "--api-key", default=None, metavar="KEY", help="discouraged: others can read it in the process list"
    )
    _add_fields(parser, tuple(Plan.model_fields))


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """``--plan FILE`` and the options that name a target and how it is asked, without any load."""
    parser.add_argument(
        "--plan", type=Path, default=None, metavar="FILE", help="TOML plan that names the target"
    )
    parser.set_defaults(api_key=None)
    _add_fields(parser, TARGET_FIELDS)


def _add_fields(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    groups: dict[str, Any] = {}
    for name in names:
        field = Plan.model_fields[name]
        extra = field.json_schema_extra
        if not isinstance(extra, dict):
            continue
        title = str(extra["group"])
        group = groups.setdefault(title, parser.add_argument_group(title))
        _add_option(group, name, field, extra)


def _add_option(group: Any, name: str, field: FieldInfo, extra: dict[str, Any]) -> None:
    flags = [_flag(name), *extra["aliases"]]
    text = _help(field)
    if name in FLAGS:
        group.add_argument(*flags, dest=name, action="store_true", default=UNSET, help=text)
    elif name in LISTS:
        group.add_argument(
            *flags, dest=name, nargs="+", action="extend", default=UNSET, help=text, metavar=LISTS[name]
        )
    elif name in REPEATED:
        group.add_argument(
            *flags, dest=name, action="append", default=UNSET, help=text, metavar=REPEATED[name]
        )
    else:
        group.add_argument(*flags, dest=name, default=UNSET, help=text, metavar=_metavar(name, field))


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    default = field.default
    if default in (None, False, 0, "", [], {}) or "default" in text:
        return text
    if isinstance(default, int) and default >= 1_000_000:
        default = f"{default / 1e9:g}s"
    return f"{text} [{default}]"


def _metavar(name: str, field: FieldInfo) -> str:
    """The choices where there are few, else what kind of value it is. The plan checks them."""
    choices = _choices(name, field)
    return f"{{{','.join(choices)}}}" if choices else name.rpartition("_")[2].upper()


def _choices(name: str, field: FieldInfo) -> list[str]:
    if name == "endpoint":
        from loadgen.clients import CLIENTS

        return list(CLIENTS)
    kinds = get_args(field.annotation) if get_origin(field.annotation) is not Literal else (field.annotation,)
    return [str(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]


def plan_from(args: argparse.Namespace) -> tuple[Plan, str | None]:
    """(the plan, a key that was given on the command line). Raises UsageError naming what is wrong."""
    plans, key = plans_from(args)
    if len(plans) > 1:
        raise UsageError("--base-url: one endpoint is asked here; only run takes several")
    return plans[0], key


def plans_from(args: argparse.Namespace) -> tuple[list[Plan], str | None]:
    """As `plan_from`, a plan for each ``--base-url`` that was given."""
    options = {name: getattr(args, name) for name in Plan.model_fields if hasattr(args, name)}
    for name in ("header", "response_field", "tensor"):
        if name in options:
            options[name] = _pairs(name, options[name])
    for name in ("extra_body", "request_template"):
        if name in options:
            options[name] = _json_object(name, options[name])
    urls = options.pop("base_url", None)
    each = [options] if urls is None else [options | {"base_url": url} for url in urls]
    return [build_plan(one, args.plan) for one in each], args.api_key


def _pairs(option: str, pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, mark, value = pair.partition("=") if "=" in pair else pair.partition(":")
        if not mark or not name.strip():
            raise UsageError(f"{_flag(option)} {pair!r}: write NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(Path(text[1:]).read_bytes() if text.startswith("@") else text)
    except OSError as error:
        raise UsageError(f"{_flag(option)} {text}: {os.strerror(error.errno or 0).lower()}") from None
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{_flag(option)} {text!r}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise UsageError(f"{_flag(option)} {text!r}: a JSON object is needed")
    return value
