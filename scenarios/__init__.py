"""Questions about a deployment: each sends what it must and judges what came back."""

from scenarios.benchmark import BENCHMARK
from scenarios.compare_endpoints import COMPARE_ENDPOINTS
from scenarios.concurrency_crossover import CONCURRENCY_CROSSOVER
from scenarios.context_matrix import CONTEXT_MATRIX
from scenarios.envoy_payload import ENVOY_PAYLOAD
from scenarios.gpu_work_per_token import GPU_WORK_PER_TOKEN
from scenarios.kv_fragmentation import KV_FRAGMENTATION
from scenarios.length_knee import LENGTH_KNEE
from scenarios.long_context import LONG_CONTEXT
from scenarios.prefix_reuse import PREFIX_REUSE
from scenarios.priority_inversion import PRIORITY_INVERSION
from scenarios.scenario import Scenario
from scenarios.throughput_knee import THROUGHPUT_KNEE
from scenarios.trace_bursts import TRACE_BURSTS

SCENARIOS: dict[str, Scenario] = {
    BENCHMARK.name: BENCHMARK,
    THROUGHPUT_KNEE.name: THROUGHPUT_KNEE,
    COMPARE_ENDPOINTS.name: COMPARE_ENDPOINTS,
    PREFIX_REUSE.name: PREFIX_REUSE,
    TRACE_BURSTS.name: TRACE_BURSTS,
    CONTEXT_MATRIX.name: CONTEXT_MATRIX,
    LENGTH_KNEE.name: LENGTH_KNEE,
    CONCURRENCY_CROSSOVER.name: CONCURRENCY_CROSSOVER,
    LONG_CONTEXT.name: LONG_CONTEXT,
    KV_FRAGMENTATION.name: KV_FRAGMENTATION,
    GPU_WORK_PER_TOKEN.name: GPU_WORK_PER_TOKEN,
    PRIORITY_INVERSION.name: PRIORITY_INVERSION,
    ENVOY_PAYLOAD.name: ENVOY_PAYLOAD,
}
"""By name. Another question is one more file and one more line here."""
