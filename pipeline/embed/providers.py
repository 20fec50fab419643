"""What differs between embedding services that speak OpenAI's protocol: one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """Bounds are the provider's published ones or safer; where they differ by model, those of its most used models."""

    base_url: str
    """Empty: only DUJIANG_EMBEDDER_BASE_URL can say."""
    batch_size: int = 128
    """Most inputs a request."""
    batch_tokens: int = 300_000
    """Most tokens a request."""
    max_tokens: int = 8_000
    """Longest input; longer ones are cut."""
    dimension_key: str = "dimensions"
    """Name of the field that asks for a vector length."""
    role_key: str = ""
    """Field that tells questions from passages; empty when the protocol has none."""
    passage_role: str = ""
    query_role: str = ""
    base64: bool = True
    """False where the field `encoding_format` is refused rather than ignored."""
    format_key: str = "encoding_format"
    key_header: str = ""
    """Header of the key where it is not ``Authorization: Bearer``."""
    rps: float = 0.0
    """Requests a second that every account is allowed; 0 where the provider sets it by account."""


_DASHSCOPE = Provider("https://dashscope.aliyuncs.com/compatible-mode/v1", batch_size=10, batch_tokens=80_000, max_tokens=2_048, base64=False)
_LOCAL = Provider("", batch_size=64, batch_tokens=64_000)

PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1"),
    "azure": Provider("", key_header="api-key"),
    "dashscope": _DASHSCOPE,
    "qwen": _DASHSCOPE,
    "zhipu": Provider("https://open.bigmodel.cn/api/paas/v4", batch_size=64, batch_tokens=8_000, max_tokens=3_000, base64=False),
    "siliconflow": Provider("https://api.siliconflow.cn/v1", batch_size=32, batch_tokens=64_000),
    "volcengine": Provider("https://ark.cn-beijing.volces.com/api/v3", batch_size=64, batch_tokens=100_000, max_tokens=4_000),
    "jina": Provider(
        "https://api.jina.ai/v1",
        batch_tokens=100_000,
        role_key="task",
        passage_role="retrieval.passage",
        query_role="retrieval.query",
        format_key="embedding_type",
    ),
    "voyage": Provider(
        "https://api.voyageai.com/v1",
        batch_tokens=100_000,
        max_tokens=16_000,
        dimension_key="output_dimension",
        role_key="input_type",
        passage_role="document",
        query_role="query",
    ),
    "mistral": Provider("https://api.mistral.ai/v1", batch_size=64, batch_tokens=14_000, dimension_key="output_dimension", base64=False),
    "gemini": Provider(
        "https://generativelanguage.googleapis.com/v1beta/openai", batch_size=100, batch_tokens=20_000, max_tokens=2_000, base64=False
    ),
    "cohere": Provider("https://api.cohere.ai/compatibility/v1", batch_size=96, batch_tokens=100_000, base64=False),
    "openrouter": Provider("https://openrouter.ai/api/v1"),
    "ollama": Provider("http://127.0.0.1:11434/v1", batch_size=64, batch_tokens=64_000),
    "vllm": Provider("http://127.0.0.1:8000/v1", batch_size=128, batch_tokens=128_000),
    "xinference": Provider("http://127.0.0.1:9997/v1", batch_size=64, batch_tokens=64_000),
    "lmstudio": Provider("http://127.0.0.1:1234/v1", batch_size=64, batch_tokens=64_000),
    "tei": Provider("http://127.0.0.1:8080/v1", batch_size=32, batch_tokens=16_000),
    "localai": Provider("http://127.0.0.1:8080/v1", batch_size=64, batch_tokens=64_000),
    "gpustack": _LOCAL,
}

PREFIXES: Mapping[str, tuple[str, str]] = {
    "e5": ("query: ", "passage: "),
    "nomic-embed-text": ("search_query: ", "search_document: "),
    "qwen3-embedding": ("Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:", ""),
    "mxbai-embed": ("Represent this sentence for searching relevant passages: ", ""),
    "bge-large-zh": ("为这个句子生成表示以用于检索相关文章：", ""),
    "bge-base-zh": ("为这个句子生成表示以用于检索相关文章：", ""),
    "bge-small-zh": ("为这个句子生成表示以用于检索相关文章：", ""),
}
"""Model family → (before a question, before a passage), from the model cards. Servers do not add them by themselves."""


def prefixes(model: str) -> tuple[str, str]:
    """(before a question, before a passage) for a model name; both empty when its family asks for none."""
    name = model.lower().rpartition("/")[2]
    for family, pair in PREFIXES.items():
        if name.startswith((f"{family}-", f"multilingual-{family}-")) or name.split(":")[0] == family:
            return pair
    return "", ""


SHORT: Mapping[str, int] = {
    "bge-large": 480,
    "bge-base": 480,
    "bge-small": 480,
    "bce-embedding": 480,
    "e5": 480,
    "multilingual-e5": 480,
    "m3e": 480,
    "mxbai-embed": 480,
    "text2vec": 480,
    "gte-large-zh": 480,
    "embedding-2": 480,
    "all-minilm": 240,
    "paraphrase-multilingual": 120,
    "nomic-embed-text": 2_000,
}
"""Model family → longest input, where it is shorter than the provider's row: services refuse a longer one instead of cutting it."""


def max_tokens(provider: Provider, model: str) -> int:
    """Longest input of a model at a provider, in tokens."""
    name = model.lower().rpartition("/")[2]
    return min([provider.max_tokens, *(limit for family, limit in SHORT.items() if name.startswith(family))])
