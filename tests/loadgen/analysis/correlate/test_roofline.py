"""E6: the roofline's law against hand calculation, its calibration on planted data, and shapes by every way in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from scipy.optimize import nnls

from loadgen.analysis.correlate.capture import Capture, Requests, S, Stage
from loadgen.analysis.correlate.roofline import busy_shares, calibrated_at, sm_estimate
from loadgen.analysis.correlate.windows import Windows
from loadgen.analysis.rows import Floats
from loadgen.errors import UsageError
from loadgen.simulator.cost import RooflineCost
from loadgen.simulator.presets import GPUS, MODELS
from loadgen.simulator.shapes import gpu_shape, model_shape, shaped_cost

COST = RooflineCost(MODELS["llama-3.1-8b"], GPUS["h200"])
N = 60


def capture_of(stages: int = 6, prompt: float = 100.0, output: float = 50.0) -> Capture:
    zero = np.zeros(4, np.int64)
    requests = Requests(zero, zero, zero, zero, zero, np.full(4, prompt), np.full(4, output), np.zeros(4),
                        np.ones(4, np.bool_), lambda _: iter(()))  # fmt: skip
    each = N // stages
    named = tuple(Stage(f"s{i}", i * each * S, (i + 1) * each * S, False) for i in range(stages))
    return Capture(0, requests, named, {})


def windows_with(columns: dict[str, Floats], stages: int = 6) -> Windows:
    return Windows(S, columns, np.arange(N, dtype=np.int64) // (N // stages), np.ones(N, np.bool_))


def test_a_full_batch_takes_what_its_operations_and_bytes_take() -> None:
    # 8 sequences, a token each 20 ms: 50 steps a second, 125 positions each; 2 prompts of 100 tokens a second
    columns = {
        "output_tok_s": np.full(N, 400.0),
        "itl_ms": np.full(N, 20.0),
        "prompt_tok_s": np.full(N, 200.0),
    }
    u = busy_shares(capture_of(), windows_with(columns), COST)[0, 0]
    model, gpu = COST.model, COST.gpu
    bandwidth = gpu.bandwidth * COST.bandwidth_efficiency
    step_bytes = COST.weight_bytes + COST.kv_bytes_per_token * (8 * 125 + 8)
    prompt_flops = 2 * model.active * 100 + 4 * model.layers * model.heads * model.head_dim * 5050
    prompt_bytes = COST.weight_bytes + COST.kv_bytes_per_token * (100 + 100)
    prompt_s = max(prompt_flops / (gpu.flops_16 * COST.compute_efficiency), prompt_bytes / bandwidth)
    assert u == pytest.approx(50 * step_bytes / bandwidth + 2 * prompt_s, rel=1e-6)


def test_an_idle_window_is_idle_and_a_token_without_a_gap_took_no_decode_step() -> None:
    zero = np.zeros(N)
    idle = windows_with({"output_tok_s": zero, "itl_ms": zero + np.nan, "prompt_tok_s": zero})
    assert busy_shares(capture_of(), idle, COST)[0, 0] == 0
    lone = windows_with({"output_tok_s": zero + 1, "itl_ms": zero + np.nan, "prompt_tok_s": zero})
    assert busy_shares(capture_of(), lone, COST)[0, 0] == 0


def planted(seed: int = 3) -> dict[str, Floats]:
    """Stages of rising load, whose true activity is the busy share by other efficiencies and an idle level."""
    rng = np.random.default_rng(seed)
    out = 100.0 * (1 + np.arange(N) // 10) * (1 + 0.1 * rng.standard_normal(N))
    columns = {"output_tok_s": out, "itl_ms": 15 + out / 100, "prompt_tok_s": 2 * out * rng.random(N)}
    shares = busy_shares(capture_of(), windows_with(columns), COST)
    columns["sm_active"] = 0.02 + shares[:, 1:] @ [0.7, 1.5, 1.2] + 0.005 * rng.standard_normal(N)
    return columns


def test_a_calibrated_estimate_finds_stages_that_it_has_not_seen_and_says_its_error() -> None:
    found = sm_estimate(capture_of(), windows_with(planted()), COST)
    assert found is not None
    assert found["calibrated"]
    errors = [row["estimated"] - row["measured"] for row in found["stages"]]
    assert found["mean_absolute_error"] == pytest.approx(np.mean(np.abs(errors)))
    assert found["mean_absolute_error"] < 0.01
    assert found["uncalibrated_mean_absolute_error"] > 3 * found["mean_absolute_error"]


def test_without_a_measurement_the_estimate_stands_alone_and_its_error_is_unknown() -> None:
    columns = planted()
    del columns["sm_active"]
    found = sm_estimate(capture_of(), windows_with(columns), COST)
    assert found is not None
    assert not found["calibrated"]
    assert found["mean_absolute_error"] is None
    assert all(row["measured"] is None and 0 < row["estimated"] <= 1 for row in found["stages"])
    assert sm_estimate(capture_of(), windows_with(columns)) is None


def test_fewer_than_four_stages_calibrate_nothing() -> None:
    found = sm_estimate(capture_of(3), windows_with(planted(), 3), COST)
    assert found is not None
    assert not found["calibrated"]
    assert found["stages"][0]["estimated"] == found["stages"][0]["uncalibrated"]


LLAMA = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}


def test_a_config_json_has_the_published_shape(tmp_path: Path) -> None:
    for config, name in ((LLAMA, "llama-3.1-8b"), (MIXTRAL, "mixtral-8x7b")):
        (tmp_path / "config.json").write_bytes(orjson.dumps(config))
        found, known = model_shape(str(tmp_path / "config.json")), MODELS[name]
        assert found.parameters == pytest.approx(known.parameters, rel=0.01)
        assert found.active == pytest.approx(known.active, rel=0.01)
        assert replace(found, parameters=0, active=0) == replace(known, parameters=0, active=0)


def test_figures_and_the_drivers_names_are_read() -> None:
    assert model_shape("parameters=3.75e9,layers=28").layers == 28
    assert gpu_shape("NVIDIA H200") == GPUS["h200"]
    assert gpu_shape("NVIDIA A100-SXM4-80GB") == GPUS["a100-80gb"]
    assert gpu_shape("NVIDIA L40S") == GPUS["l40s"]
    assert shaped_cost("qwen2.5-7b", "l4", "int4").bytes_per_weight == 0.5


@pytest.mark.parametrize(
    "text", ["gpt-9", "layers=3", "parameters=x", "parameters=1,colour=2", "parameters=0", __file__]
)
def test_an_unknown_shape_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        model_shape(text)


def test_the_calibration_is_scipys_non_negative_least_squares() -> None:
    rng = np.random.default_rng(5)
    for weights in ([0.7, 1.5, 1.2], [-1.0, 1.0, 0.5], [0.0, -2.0, 1.0]):
        features = rng.random((40, 3)) * [1, 100, 0.01]
        measured = np.clip(0.05 + features @ (np.array(weights) / [3, 300, 0.03]), 0, 1)
        solved = nnls(np.column_stack([np.ones(40), features]), measured)[0]
        at = features.mean(axis=0)
        assert calibrated_at(at, features, measured) == pytest.approx(solved @ [1, *at], abs=1e-6)
