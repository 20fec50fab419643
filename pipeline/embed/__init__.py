"""Text to vectors: which embedders there are, and the one that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from pipeline import registry
from pipeline.embed.providers import PROVIDERS
from pipeline.errors import BadRequest
from pipeline.protocols import Embedder, EmbedderProfile, Limiter, Service
from pipeline.settings import Settings

_MODULES: Mapping[str, str] = {
    "local": "pipeline.embed.local",
    "hashed": "pipeline.embed.hashed",
    **dict.fromkeys(PROVIDERS, "pipeline.embed.openai"),
}

EMBEDDERS: Mapping[str, str] = {name: f"{module}:build" for name, module in _MODULES.items()}
"""Name before the first colon of `Settings.embedder` → its builder, ``(Settings) -> Embedder``."""


def create(settings: Settings, limiter: Limiter | None = None) -> Embedder:
    """The configured embedder. Nothing is loaded and nobody is called before its first use. `limiter` is for one that is a `service`.

    Raises Unsupported for an unknown name, BadRequest when a service is named without a model or an address.
    """
    build = cast("Callable[..., Embedder]", registry.find(EMBEDDERS, _name(settings), what="embedder"))
    return build(settings) if limiter is None else build(settings, limiter)


def service(settings: Settings) -> Service | None:
    """The service that the configured embedder calls; None for one that computes in this process. Raises like `create`."""
    name = _name(settings)
    if name not in PROVIDERS:
        return None
    describe = cast("Callable[[Settings], Service]", registry.find({name: "pipeline.embed.openai:service"}, name, what="embedder"))
    return describe(settings)


def profile(settings: Settings) -> EmbedderProfile:
    """The configured embedder's profile, without loading a model or connecting. Raises like `create`."""
    targets = {name: f"{module}:profile" for name, module in _MODULES.items()}
    describe = cast("Callable[[Settings], EmbedderProfile]", registry.find(targets, _name(settings), what="embedder"))
    return describe(settings)


def _name(settings: Settings) -> str:
    name, model = registry.split(settings.embedder)
    if name in PROVIDERS and not model:
        raise BadRequest(f"the embedder {name!r} needs a model", hint=f"Set DUJIANG_EMBEDDER={name}:MODEL with the model's name.", code="bad_setting")
    return name
