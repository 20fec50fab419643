"""Where documents, terms and vectors are kept, behind the one protocol `Store`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pipeline import registry
from pipeline.protocols import Store

STORES: Mapping[str, str] = {
    "sqlite": "pipeline.stores.embedded:EmbeddedStore",
    "elasticsearch+http": "pipeline.stores.elasticsearch:ElasticsearchStore",
    "elasticsearch+https": "pipeline.stores.elasticsearch:ElasticsearchStore",
}
"""URL scheme → implementation."""


def open_store(url: str, *, writer: bool) -> Store:
    """Open the store that a URL names; nothing is created or connected before the first call.

    Raises: Unsupported for an unknown scheme or a missing package.
    """
    scheme = url.partition("://")[0].lower()
    return cast("Store", registry.find(STORES, scheme, what="store")(url, writer=writer))
