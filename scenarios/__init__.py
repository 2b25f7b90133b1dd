"""Questions about a deployment: each sends what it must and judges what came back."""

from scenarios.benchmark import BENCHMARK
from scenarios.compare_endpoints import COMPARE_ENDPOINTS
from scenarios.envoy_payload import ENVOY_PAYLOAD
from scenarios.length_knee import LENGTH_KNEE
from scenarios.prefix_reuse import PREFIX_REUSE
from scenarios.priority_inversion import PRIORITY_INVERSION
from scenarios.scenario import Scenario
from scenarios.throughput_knee import THROUGHPUT_KNEE

SCENARIOS: dict[str, Scenario] = {
    BENCHMARK.name: BENCHMARK,
    THROUGHPUT_KNEE.name: THROUGHPUT_KNEE,
    COMPARE_ENDPOINTS.name: COMPARE_ENDPOINTS,
    LENGTH_KNEE.name: LENGTH_KNEE,
    PREFIX_REUSE.name: PREFIX_REUSE,
    PRIORITY_INVERSION.name: PRIORITY_INVERSION,
    ENVOY_PAYLOAD.name: ENVOY_PAYLOAD,
}
"""By name. Another question is one more file and one more line here."""
