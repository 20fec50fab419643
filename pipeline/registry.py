"""Name → "module:Class", imported on first use, so that a worker loads only what it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pipeline.errors import Unsupported


def split(spec: str) -> tuple[str, str]:
    """("openai", "bge-m3:latest") of ``openai:bge-m3:latest``: split at the first colon only."""
    name, _, rest = spec.partition(":")
    return name.strip(), rest.strip()


def find(registry: Mapping[str, str], name: str, *, what: str) -> Any:
    """The object registered as `name`.

    Raises Unsupported, with the names there are, when it is unknown or its extra is not installed.
    """
    target = registry.get(name)
    if target is None:
        known = ", ".join(sorted(registry))
        raise Unsupported(f"unknown {what} {name!r}", hint=f"Use one of: {known}.", code=f"unknown_{what.replace(' ', '_')}")
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in {"pipeline", "graphrag", "workers", "api"}:
            raise
        raise Unsupported(f"{what} {name!r} needs the package {error.name!r}, which is not installed", hint=f"pip install {error.name}") from error
