"""Where rows come from. ``SAMPLERS`` is the whole list: adding one is a file, a line here and a fixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_sidecar.errors import UsageError
from gpu_sidecar.samplers.base import PolledSampler, Sampler
from gpu_sidecar.samplers.dcgm import DcgmPoller
from gpu_sidecar.samplers.engine import EnginePoller
from gpu_sidecar.samplers.nvml_child import NvmlSampler
from gpu_sidecar.samplers.proc import ProcSampler
from gpu_sidecar.samplers.replay import ReplaySampler
from gpu_sidecar.samplers.simulated import SimulatedPoller
from gpu_sidecar.samplers.torch_allocator import TorchPoller


@dataclass(slots=True)
class SamplerOptions:
    """What the command line may say about samplers; each takes what concerns it."""

    hz: float = 20.0
    gpm_window_ms: int = 100
    fake_script: str = "-"
    pids: list[int] = field(default_factory=list)
    proc_interval_s: float = 1.0
    engine_url: str | None = None
    engine_interval_s: float = 0.5
    dcgm_url: str = "http://127.0.0.1:9400/metrics"
    dcgm_interval_s: float = 1.0
    telemetry_url: str | None = None
    torch_file: str | None = None
    replay_path: str | None = None


def _worker_arguments(options: SamplerOptions) -> list[str]:
    return ["--hz", str(options.hz), "--gpm-window-ms", str(options.gpm_window_ms)]


def _nvml(options: SamplerOptions) -> Sampler:
    return NvmlSampler(_worker_arguments(options))


def _fake(options: SamplerOptions) -> Sampler:
    return NvmlSampler([*_worker_arguments(options), "--fake", options.fake_script])


def _proc(options: SamplerOptions) -> Sampler:
    return ProcSampler(options.pids, options.proc_interval_s)


def _needed(value: str | None, sampler: str, option: str) -> str:
    if not value:
        raise UsageError(f"--sampler {sampler} needs {option}")
    return value


def _engine(options: SamplerOptions) -> Sampler:
    poller = EnginePoller(_needed(options.engine_url, "engine", "--engine-url"))
    return PolledSampler("engine", poller.device, options.engine_interval_s, poller.poll)


def _dcgm(options: SamplerOptions) -> Sampler:
    return PolledSampler("dcgm", "all", options.dcgm_interval_s, DcgmPoller(options.dcgm_url).poll)


def _simulated(options: SamplerOptions) -> Sampler:
    poller = SimulatedPoller(_needed(options.telemetry_url, "simulated", "--telemetry-url"))
    return PolledSampler("simulated", "all", 1 / options.hz, poller.poll)


def _torch(options: SamplerOptions) -> Sampler:
    path = Path(_needed(options.torch_file, "torch", "--torch-file"))
    return PolledSampler("torch", "all", 1.0, TorchPoller(path).poll)


def _replay(options: SamplerOptions) -> Sampler:
    return ReplaySampler(Path(_needed(options.replay_path, "replay", "--replay")))


SAMPLERS: dict[str, Callable[[SamplerOptions], Sampler]] = {
    "nvml": _nvml,
    "fake": _fake,
    "proc": _proc,
    "engine": _engine,
    "dcgm": _dcgm,
    "torch": _torch,
    "simulated": _simulated,
    "replay": _replay,
}
