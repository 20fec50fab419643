"""The index layout. ``deploy/elasticsearch/index.json`` is a copy of `template`, checked by a test.

A collection is two indices of one mapping behind two aliases: ``NAME`` holds the chunks, ``NAME-documents``
the heads (which version of a document is visible) and the bodies (its parsed text). The terms are made by us,
so the built-in whitespace analyser is enough, and no plugin or module beyond the smallest distribution is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.errors import BadRequest

LAYOUT = 1
"""Rises when an index of an older layout can no longer be read."""
MAX_DIMENSION = 4096
"""Elasticsearch's own limit."""
K1 = 0.6
"""How soon a repeated term stops to count; Lucene's 1.2 suits longer texts than chunks. The embedded store does the same."""

_KEYWORD = {"type": "keyword", "ignore_above": 8191}
"""8191 characters are at most 32,764 bytes: just below the longest term that Lucene takes."""
_CARRIED = {"type": "keyword", "index": False}
_TERMS = {"type": "text", "analyzer": "whitespace", "index_options": "freqs"}
_SETTINGS: Mapping[str, object] = {
    "refresh_interval": "30s",
    "similarity": {"default": {"type": "BM25", "k1": K1, "b": 0.75}},
}
_FIELDS: Mapping[str, Mapping[str, object]] = {
    "record": {"type": "keyword"},
    "document_id": {"type": "keyword"},
    "edition": {"type": "keyword", "doc_values": False},
    "version": {"type": "long"},
    "ordinal": {"type": "integer"},
    "key": _KEYWORD,
    "title": _KEYWORD,
    "url": _KEYWORD,
    "access": _KEYWORD,
    "kind": {"type": "keyword"},
    "meta": {"type": "keyword", "doc_values": False},
    "words": _TERMS,
    "grams": _TERMS,
    "valid_from": {"type": "long"},
    "valid_to": {"type": "long"},
    "chunk_id": _CARRIED,
    "search_hash": _CARRIED,
    "text_hash": _CARRIED,
    "start": {"type": "integer", "index": False},
    "end": {"type": "integer", "index": False},
    "embedded": {"type": "boolean"},
    "shown": {"type": "object", "enabled": False},
    "chunks": {"type": "integer", "index": False},
    "parts": {"type": "integer", "index": False},
    "body": {"type": "binary"},
}


def check_name(collection: str) -> str:
    """The name itself, once it is safe in a path. Raises BadRequest."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,199}", collection):
        raise BadRequest("a collection's name in Elasticsearch is lower-case letters, digits, dots, dashes and underscores, 200 at most")
    return collection


def mappings(dimension: int) -> dict[str, object]:
    """Fields of both indices. Dimension 0 leaves the vector out.

    int8 holds a quarter of the vectors' size in memory; the store asks for exact re-scoring at every search.
    """
    fields: dict[str, Mapping[str, object]] = dict(_FIELDS)
    if dimension:
        fields["vector"] = {
            "type": "dense_vector",
            "dims": dimension,
            "index": True,
            "similarity": "cosine",
            "index_options": {"type": "int8_hnsw"},
        }
    return {"dynamic": "strict", "_meta": {"layout": LAYOUT, "dimension": dimension}, "properties": fields}


def index(alias: str, dimension: int) -> dict[str, object]:
    """Body that creates one index behind its alias; shards, replicas and the rest are the cluster's templates' business."""
    return {"aliases": {alias: {}}, "mappings": mappings(dimension), "settings": {"index": _SETTINGS}}


def template() -> dict[str, object]:
    """Index template for operators: the place to set shards and replicas. The dimension comes with each collection.

    With it, a write to a dropped collection can never create an index by itself.
    """
    return {
        "index_patterns": ["dujiang-*"],
        "priority": 200,
        "allow_auto_create": False,
        "template": {
            "settings": {"index": {"number_of_shards": 1, "number_of_replicas": 1, **_SETTINGS}},
            "mappings": {"dynamic": "strict", "properties": dict(_FIELDS)},
        },
        "_meta": {"layout": LAYOUT, "description": "Chunks, heads and bodies of Dujiang collections."},
    }


if __name__ == "__main__":
    import json
    import sys

    sys.stdout.write(json.dumps(template(), indent=2) + "\n")
