"""Chat services that speak OpenAI's protocol: one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """Where a service answers and what it calls things."""

    base_url: str
    """Empty: only DUJIANG_LLM_BASE_URL can say."""
    limit_key: str = "max_tokens"
    """Field of the most tokens to generate; OpenAI's reasoning models refuse the old name."""
    key_header: str = ""
    """Header of the key where it is not ``Authorization: Bearer``."""


_DASHSCOPE = Provider("https://dashscope.aliyuncs.com/compatible-mode/v1")

PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", limit_key="max_completion_tokens"),
    "azure": Provider("", limit_key="max_completion_tokens", key_header="api-key"),
    "dashscope": _DASHSCOPE,
    "qwen": _DASHSCOPE,
    "deepseek": Provider("https://api.deepseek.com/v1"),
    "moonshot": Provider("https://api.moonshot.cn/v1"),
    "zhipu": Provider("https://open.bigmodel.cn/api/paas/v4"),
    "siliconflow": Provider("https://api.siliconflow.cn/v1"),
    "volcengine": Provider("https://ark.cn-beijing.volces.com/api/v3"),
    "mistral": Provider("https://api.mistral.ai/v1"),
    "gemini": Provider("https://generativelanguage.googleapis.com/v1beta/openai"),
    "groq": Provider("https://api.groq.com/openai/v1"),
    "openrouter": Provider("https://openrouter.ai/api/v1"),
    "ollama": Provider("http://127.0.0.1:11434/v1"),
    "vllm": Provider("http://127.0.0.1:8000/v1"),
    "xinference": Provider("http://127.0.0.1:9997/v1"),
    "lmstudio": Provider("http://127.0.0.1:1234/v1"),
    "localai": Provider("http://127.0.0.1:8080/v1"),
    "gpustack": Provider(""),
}
