"""The fit as a picture (PNG or SVG by the file's name); matplotlib is imported only here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from traces.errors import TraceError
from traces.fit import Fit, simulated
from traces.processes.doubly_stochastic import memory_idc
from traces.stats import counts

SUFFIXES = (".png", ".svg")


def plot(fit: Fit, path: Path, *, seed: int = 0) -> None:
    """IDC against window and counts over time, trace beside models. Raises TraceError without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise TraceError(f"{path}: a plot is {' or '.join(SUFFIXES)}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise TraceError("a plot needs matplotlib: pip install 'loadgen[plot]'") from None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _dispersion(left, fit)
    _counts(right, fit, seed)
    figure.savefig(path)


def _dispersion(axes: Any, fit: Fit) -> None:
    windows = np.array(fit.windows_s)
    axes.loglog(windows, fit.curve, "k.", label="trace")
    axes.axhline(1.0, color="tab:grey", label="Poisson")
    axes.axhline(1 / fit.gamma.k, color="tab:orange", label=f"Gamma renewal, k = {fit.gamma.k:.3g}")
    if fit.memory is not None:
        model = memory_idc(fit.rate_per_s, fit.memory.r, fit.memory.tau_s, windows)
        label = f"Poisson-gamma, r = {fit.memory.r:.3g}, tau = {fit.memory.tau_s:.3g} s"
        axes.loglog(windows, model, color="tab:blue", label=label)
    axes.set_xlabel("window, s")
    axes.set_ylabel("variance / mean of counts")
    axes.legend()


def _counts(axes: Any, fit: Fit, seed: int) -> None:
    window_s = max(1.0, fit.span_s / 300)
    series = {"trace": (fit.instants_ns, "k")}
    seeds = np.random.SeedSequence(seed, spawn_key=(9,)).spawn(2)
    series["Poisson"] = (simulated("poisson", fit.rate_per_s, fit.span_s, seeds[0]), "tab:grey")
    if fit.memory is not None:
        r, tau_s = fit.memory.r, fit.memory.tau_s
        sample = simulated("poisson-gamma", fit.rate_per_s, fit.span_s, seeds[1], r=r, tau_s=tau_s)
        series["Poisson-gamma"] = (sample, "tab:blue")
    offset = 0.0
    for name, (t_ns, colour) in series.items():
        if t_ns.size < 2:
            continue
        found = counts(t_ns, window_s) / window_s
        axes.step(np.arange(found.size) * window_s, found + offset, color=colour, label=name, where="post")
        offset += float(max(found.max(), 1.0)) * 1.1
    axes.set_xlabel("time, s")
    axes.set_ylabel(f"requests/s in {window_s:.3g} s windows (shifted)")
    axes.legend()
