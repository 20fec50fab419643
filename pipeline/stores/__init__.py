"""Where documents, terms and vectors are kept, behind the one protocol `Store`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from pipeline import registry
from pipeline.protocols import Limiter, Service, Store

STORES: Mapping[str, str] = {
    "sqlite": "pipeline.stores.embedded:EmbeddedStore",
    "elasticsearch+http": "pipeline.stores.elasticsearch:ElasticsearchStore",
    "elasticsearch+https": "pipeline.stores.elasticsearch:ElasticsearchStore",
}
"""URL scheme → implementation."""


def open_store(url: str, *, writer: bool, limiter: Limiter | None = None) -> Store:
    """Open the store that a URL names; nothing is created or connected before the first call. `limiter` is for one that is a `service`.

    Raises: Unsupported for an unknown scheme or a missing package.
    """
    scheme = url.partition("://")[0].lower()
    make = cast("Callable[..., Store]", registry.find(STORES, scheme, what="store"))
    return make(url, writer=writer) if limiter is None else make(url, writer=writer, limiter=limiter)


def service(url: str) -> Service | None:
    """The service that a URL names; None for a store in this process. Raises BadRequest."""
    if not url.startswith("elasticsearch+"):
        return None
    from pipeline.stores.elasticsearch_client import address

    return Service(part="store", provider="elasticsearch", shown=f"Elasticsearch at {address(url).shown}", credential=url)
