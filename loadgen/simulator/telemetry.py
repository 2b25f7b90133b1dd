"""A simulated GPU's telemetry, from the roofline's floating point operations and bytes.

Over a window of w seconds, with F operations, M bytes moved and g seconds of kernels::

    gr_engine_active = g / w          dram_active = M / (w bandwidth)
    tensor_active = F / (w peak 0.73)           sm_active = 0.96 gr_engine_active
    power = min(limit, idle + limit (1.08 tensor_active + 0.42 dram_active))

The constants are those of an H200 in our own recording: tensor 93.7 % active at 673 of 989 TFLOP/s (0.68 /
0.937 = 0.73), SM 96-97 % active under a matmul, 503 W at a 0.534 duty of matmul and 256 W at a 0.508 duty
of device copy. Other GPUs: the same shares of their own limit. Rough on purpose: it has the right shape,
not the right watt.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from loadgen.simulator.core import Engine
from loadgen.simulator.cost import RooflineCost

NS_PER_S = 1_000_000_000
WINDOW_NS = NS_PER_S // 10
DEVICE = "SIM-0"
RESERVED_BYTES = 1.5 * 2**30
BYTES_PER_TOKEN = 4
NO_MODEL = "the linear cost has no GPU behind it"
NOT_MODELLED = (
    "sm_occupancy",
    "temp_c",
    "mem_temp_c",
    "sm_clock_hz",
    "mem_clock_hz",
    "nvlink_tx_bytes_per_s",
)


class Totals(NamedTuple):
    """Sums up to an instant."""

    t_ns: int
    busy_ns: int
    gpu_ns: float
    flops: float
    bytes: float
    tokens_in: int
    tokens_out: int


class Telemetry:
    """Cuts time into windows of 100 ms, as a real GPU's counters are latched, and reports the last whole
    one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks: deque[Totals] = deque(maxlen=2)
        self._leaked_peak = 0.0

    def latch(self, now_ns: int) -> None:
        """Call at each end of a step and before each reading: closes the window when 100 ms have passed."""
        if not self._marks or now_ns - self._marks[-1].t_ns >= WINDOW_NS:
            c = self._engine.counters
            self._marks.append(
                Totals(now_ns, c.busy_ns, c.gpu_ns, c.flops, c.bytes, c.prefill_tokens, c.generation_tokens)
            )

    def read(self, now_ns: int) -> dict[str, Any]:
        """The answer of GET /telemetry: one device, values by name, reasons for what is missing."""
        self.latch(now_ns)
        old, new = self._marks[0], self._marks[-1]
        values: dict[str, float] = {}
        nulls: dict[str, str] = dict.fromkeys(NOT_MODELLED, "not modelled")
        if new.t_ns > old.t_ns:
            values["gpu_util_ratio"] = min(1.0, (new.busy_ns - old.busy_ns) / (new.t_ns - old.t_ns))
        else:
            nulls["gpu_util_ratio"] = "no window has passed yet"
        cost = self._engine.config.cost
        if isinstance(cost, RooflineCost):
            values |= self._memory(cost)
            if new.t_ns > old.t_ns:
                values |= activity(cost, old, new)
            values["power_limit_w"] = cost.gpu.power_w * cost.gpus
        else:
            nulls |= dict.fromkeys(("gr_engine_active", "tensor_active", "dram_active", "power_w"), NO_MODEL)
            nulls["fb_used_bytes"] = NO_MODEL
        row = {"device": DEVICE, "start_ns": old.t_ns, "t_ns": new.t_ns, "values": values, "nulls": nulls}
        return {"devices": [row]}

    def _memory(self, cost: RooflineCost) -> dict[str, float]:
        """Weights, the reserved KV cache and what has leaked; an engine without a block limit reserves
        none.
        """
        config = self._engine.config
        cache = config.num_blocks * config.block_size * cost.kv_bytes_per_token
        total = cost.gpus * cost.gpu.memory_bytes
        used = cost.weight_bytes + cache + RESERVED_BYTES + self._engine.outages.leaked_bytes
        return {"fb_used_bytes": min(total, used), "fb_free_bytes": max(0.0, total - used)}


def activity(cost: RooflineCost, old: Totals, new: Totals) -> dict[str, float]:
    """Ratios, watts and bytes per second between two instants; the law is the module's."""
    seconds = (new.t_ns - old.t_ns) / NS_PER_S
    active = min(1.0, (new.gpu_ns - old.gpu_ns) / NS_PER_S / seconds)
    tensor = min(1.0, (new.flops - old.flops) / (seconds * cost.peak_flops * 0.73))
    dram = min(1.0, (new.bytes - old.bytes) / (seconds * cost.gpus * cost.gpu.bandwidth))
    limit = cost.gpu.power_w * cost.gpus
    power = min(limit, cost.gpu.idle_w * cost.gpus + limit * (1.08 * tensor + 0.42 * dram))
    return {
        "gr_engine_active": active,
        "sm_active": 0.96 * active,
        "tensor_active": tensor,
        "dram_active": dram,
        "power_w": power,
        "pcie_rx_bytes_per_s": (new.tokens_in - old.tokens_in) * BYTES_PER_TOKEN / seconds,
        "pcie_tx_bytes_per_s": (new.tokens_out - old.tokens_out) * BYTES_PER_TOKEN / seconds,
    }
