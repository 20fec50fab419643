"""The index stage: write the new version, make it visible, retire the older one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.contracts import IndexedDocument
from pipeline.errors import BrokenContract
from pipeline.protocols import Store, WriteOutcome


def index(store: Store, collection: str, documents: Sequence[IndexedDocument]) -> list[WriteOutcome]:
    """Write documents whole, one outcome each in their order.

    Args:
        collection: `CollectionSpec.name`; the store must have been told of it by `ensure`.
    Raises: BrokenContract naming a document whose vectors are too few, too many, of unequal size or not finite,
        before anything is written; what `Store.write` raises.
    """
    dimension: int | None = None
    for document in documents:
        found = _dimension(document)
        if found is not None and dimension is not None and found != dimension:
            raise BrokenContract(
                f"document {document.key} has vectors of {found} dimensions, others of the same batch {dimension}", document=document.key
            )
        dimension = dimension if found is None else found
    return store.write(collection, documents) if documents else []


def _dimension(document: IndexedDocument) -> int | None:
    """Of the document's vectors; None where it has no chunks."""
    shape = document.vectors.shape
    if not document.chunks:
        return None
    if len(shape) != 2 or shape[0] != len(document.chunks):
        raise BrokenContract(f"document {document.key} has {len(document.chunks)} chunks but vectors of shape {shape}", document=document.key)
    if not np.isfinite(document.vectors).all():
        raise BrokenContract(f"document {document.key} has a vector with a value that is no number", document=document.key)
    return shape[1]
