"""What an endpoint's own listing says of its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.clients import CLIENTS
from loadgen.clients.dialect import Dialect
from loadgen.endpoint import EndpointFacts, probe_endpoint
from loadgen.plan import Plan


class Listed:
    """An endpoint with this listing that counts a word as a token; stands in for `Prober`."""

    def __init__(self, listing: dict[str, Any]) -> None:
        self._listing = listing

    def ask_json(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        return (200, self._listing) if path == "/v1/models" else (200, {"count": 200})


def facts_of(listing: dict[str, Any], model: str) -> EndpointFacts:
    dialect = CLIENTS["completions"]
    assert isinstance(dialect, Dialect)
    return probe_endpoint(Listed(listing), Plan(model=model), dialect)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "wanted"), [({"max_model_len": 4096}, 4096), ({}, None), ({"max_model_len": "?"}, None)]
)
def test_the_longest_sequence_is_the_asked_models_own_where_the_listing_says_it(
    entry: dict[str, Any], wanted: int | None
) -> None:
    listing = {"data": [{"id": "other", "max_model_len": 7}, {"id": "m", **entry}]}
    found = facts_of(listing, "m")
    assert found.max_model_len == wanted
    assert found.to_json()["max_model_len"] == wanted


def test_a_real_vllm_says_how_long_a_sequence_may_be(shared: Path) -> None:
    listing = json.loads((shared / "servers/captures/vllm_models.json").read_text())
    assert facts_of(listing, listing["data"][0]["id"]).max_model_len == 32768
