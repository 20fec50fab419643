"""Readers: which there are, and the one that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from pipeline import registry
from pipeline.errors import BadRequest
from pipeline.llm.providers import PROVIDERS
from pipeline.protocols import LLM, Limiter, Service
from pipeline.settings import Settings

LLMS: Mapping[str, str] = {
    "extractive": "pipeline.llm.extractive:build",
    **dict.fromkeys(PROVIDERS, "pipeline.llm.openai:build"),
}
"""Name before the first colon of `Settings.llm` → its builder, ``(Settings) -> LLM``."""


def create(settings: Settings, limiter: Limiter | None = None) -> LLM:
    """The configured reader. Nobody is called before its first use. `limiter` is for one that is a `service`.

    Raises Unsupported for an unknown name, BadRequest when a service is named without a model or an address.
    """
    name, model = registry.split(settings.llm)
    if name in PROVIDERS and not model:
        raise BadRequest(f"the LLM {name!r} needs a model", hint=f"Set DUJIANG_LLM={name}:MODEL with the model's name.", code="bad_setting")
    build = cast("Callable[..., LLM]", registry.find(LLMS, name, what="llm"))
    return build(settings) if limiter is None else build(settings, limiter)


def service(settings: Settings) -> Service | None:
    """The service that the configured reader calls; None for one that computes in this process. Raises like `create`."""
    name, _ = registry.split(settings.llm)
    if name not in PROVIDERS:
        return None
    describe = cast("Callable[[Settings], Service]", registry.find({name: "pipeline.llm.openai:service"}, name, what="llm"))
    return describe(settings)
