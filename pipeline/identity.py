"""Ids and fingerprints, derived from content and identity, never random."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def content_hash(data: bytes) -> str:
    """Lower-case hex SHA-256 of the bytes."""
    return hashlib.sha256(data).hexdigest()


def text_hash(text: str) -> str:
    """16 bytes of BLAKE2b as hex: `search_text` and chunk texts are compared by it."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _join(*parts: object) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        piece = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(piece).to_bytes(8, "big"))
        digest.update(piece)
    return digest.hexdigest()


def document_id(tenant: str, collection: str, key: str) -> str:
    """Identity of a document: the same key in the same collection is the same document, whatever it says."""
    return _join("document", tenant, collection, key)


def chunk_id(document: str, chunker: str, start: int, end: int, text: str) -> str:
    """A citation survives an appended turn or a new model: neither version nor generation is part of it."""
    return _join("chunk", document, chunker, start, end, text_hash(text))


def fingerprint(options: Mapping[str, object]) -> str:
    """Order-independent hash of a stage's options."""
    return _join(*(f"{key}={options[key]!r}" for key in sorted(options)))


def artifact_key(tenant: str, input_hash: str, stage: str, stage_version: int, options: str) -> str:
    """Key of a stage's output: equal inputs under equal options share it."""
    return _join("artifact", tenant, input_hash, stage, stage_version, options)


def index_name(tenant: str, collection: str, generation: int) -> str:
    """Store-side name of one generation, safe as an Elasticsearch index name: ``dujiang-<16 hex>-g<n>``."""
    return f"dujiang-{_join('collection', tenant, collection)[:16]}-g{generation}"
