"""Public data sets that can be fetched: where they are, under which licence, how to cite them.

``sha256`` stands only where the published file's digest is known; ``bytes`` likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

from traces.errors import TraceError

_GITHUB = "https://raw.githubusercontent.com"
_AZURE = "Azure Public Dataset"
_SPLITWISE = "Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, ISCA 2024"
_DYNAMO_LLM = (
    "Stojkovic et al., DynamoLLM: Designing LLM Inference Clusters for Performance and Energy Efficiency"
)
_MODSERVE = "Qiu et al., ModServe: Modality- and Stage-Aware Resource Disaggregation, SoCC 2025"
_BURSTGPT = (
    "Wang et al., BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems, arXiv:2401.17644"
)
_MOONCAKE = "Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025"
_BAILIAN = "Wang et al., KVCache Cache in the Wild, USENIX ATC 2025"
_RAGPULSE = "RAGPulse: an open-source RAG workload trace"


@dataclass(frozen=True)
class Entry:
    """One file of a public data set."""

    name: str
    url: str
    format: str
    licence: str
    citation: str
    sha256: str | None = None
    bytes: int | None = None

    @property
    def file_name(self) -> str:
        """The name that the file has at its source."""
        return self.url.rpartition("/")[2]


_ENTRIES = (
    Entry(
        "azure-code-2023",
        f"{_GITHUB}/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_code.csv",
        "azure-llm",
        "CC-BY-4.0",
        f"{_AZURE}; {_SPLITWISE}",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        320_117,
    ),
    Entry(
        "azure-conv-2023",
        f"{_GITHUB}/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_conv.csv",
        "azure-llm",
        "CC-BY-4.0",
        f"{_AZURE}; {_SPLITWISE}",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        719_188,
    ),
    Entry(
        "azure-code-2024",
        "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace/"
        "AzureLLMInferenceTrace_code_1week.csv",
        "azure-llm",
        "CC-BY-4.0",
        f"{_AZURE}; {_DYNAMO_LLM}",
    ),
    Entry(
        "azure-multimodal-2025",
        f"{_GITHUB}/Azure/AzurePublicDataset/master/data/AzureLMMInferenceTrace_multimodal.csv.gz",
        "azure-lmm",
        "CC-BY-4.0",
        f"{_AZURE}; {_MODSERVE}",
    ),
    Entry(
        "burstgpt-1",
        "https://github.com/HPMLL/BurstGPT/releases/download/v1.1/BurstGPT_1.csv",
        "burstgpt",
        "CC-BY-4.0",
        _BURSTGPT,
    ),
    Entry(
        "burstgpt-2",
        "https://github.com/HPMLL/BurstGPT/releases/download/v1.1/BurstGPT_2.csv",
        "burstgpt",
        "CC-BY-4.0",
        _BURSTGPT,
    ),
    Entry(
        "burstgpt-3",
        "https://github.com/HPMLL/BurstGPT/releases/download/v2.0/BurstGPT_3.csv",
        "burstgpt",
        "CC-BY-4.0",
        _BURSTGPT,
    ),
    Entry(
        "mooncake-conversation",
        f"{_GITHUB}/kvcache-ai/Mooncake/main/FAST25-release/traces/conversation_trace.jsonl",
        "mooncake",
        "Apache-2.0",
        _MOONCAKE,
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        3_029_533,
    ),
    Entry(
        "mooncake-synthetic",
        f"{_GITHUB}/kvcache-ai/Mooncake/main/FAST25-release/traces/synthetic_trace.jsonl",
        "mooncake",
        "Apache-2.0",
        _MOONCAKE,
    ),
    Entry(
        "bailian-a",
        f"{_GITHUB}/alibaba-edu/qwen-bailian-usagetraces-anon/main/qwen_traceA_blksz_16.jsonl",
        "bailian",
        "Apache-2.0",
        _BAILIAN,
    ),
    Entry(
        "bailian-b",
        f"{_GITHUB}/alibaba-edu/qwen-bailian-usagetraces-anon/main/qwen_traceB_blksz_16.jsonl",
        "bailian",
        "Apache-2.0",
        _BAILIAN,
    ),
    Entry(
        "ragpulse",
        f"{_GITHUB}/flashserve/RAGPulse/main/data/0_trace.jsonl",
        "ragpulse",
        "MIT",
        _RAGPULSE,
        "cd371571bef3320907147f8901729e37f412aafb067ec8eb153e2828e1801e65",
        1_923_473,
    ),
)
CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def entry_of(name: str) -> Entry:
    """An entry by its name. Raises TraceError naming the choices."""
    if name not in CATALOGUE:
        raise TraceError(f"unknown data set {name!r}; choose one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
