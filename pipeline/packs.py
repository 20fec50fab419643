"""Questions, evidence packs and answers as JSON bytes, and the keys they are cached under.

A pack or answer read back equals the one written, vectors left out: they are never sent anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import orjson

from pipeline.contracts import (
    Answer,
    Citation,
    Completion,
    Evidence,
    EvidencePack,
    Filter,
    Grounding,
    Hit,
    Mode,
    Op,
    Question,
    Step,
    Usage,
)
from pipeline.errors import BrokenContract

FORMAT = 2
"""Rises when a stored pack can no longer be read by the present code; part of every key."""

Json: TypeAlias = Mapping[str, Any]
T = TypeVar("T")


def cache_key(kind: str, *parts: object) -> str:
    """Key of one level of the answer cache.

    Args:
        kind: pack, answer or completion.
        parts: anything orjson can write; the order counts, and their boundaries cannot be confused.
    """
    data = orjson.dumps([FORMAT, kind, *parts], default=str, option=orjson.OPT_SORT_KEYS)
    return f"{kind}.{hashlib.blake2b(data, digest_size=20).hexdigest()}"


def cache_group(tenant: str, collection: str) -> str:
    """What `Cache.purge` takes to forget every answer that used a collection."""
    return f"{tenant}/{collection}"


def dump_pack(pack: EvidencePack) -> bytes:
    return _dump(replace(pack, hits=tuple(map(_bare, pack.hits)), evidence=tuple(replace(e, hit=_bare(e.hit)) for e in pack.evidence)))


def digest(pack: EvidencePack) -> str:
    """Hash of question and evidence: equal for packs that a reader cannot tell apart, whenever and how fast they were gathered.

    64 hexadecimal digits; stays the same over processes, machines and a round trip through JSON.
    """
    data = orjson.dumps(orjson.loads(dump_pack(replace(pack, steps=(), usage={}))), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(data).hexdigest()


def load_pack(data: bytes) -> EvidencePack:
    """Raises BrokenContract when the bytes are no pack of this format."""
    return _load(data, _pack, "evidence pack")


def dump_answer(answer: Answer) -> bytes:
    return _dump(replace(answer, evidence=tuple(replace(e, hit=_bare(e.hit)) for e in answer.evidence)))


def load_answer(data: bytes) -> Answer:
    """Raises BrokenContract when the bytes are no answer of this format."""
    return _load(data, _answer, "answer")


def dump_completion(completion: Completion) -> bytes:
    return _dump(completion)


def load_completion(data: bytes) -> Completion:
    """Raises BrokenContract when the bytes are no completion of this format."""
    return _load(data, lambda raw: Completion(**_with(raw, usage=Usage(**raw["usage"]))), "completion")


def _dump(value: object) -> bytes:
    return orjson.dumps(value, default=_plain)


def _plain(value: object) -> object:
    """Mappings that are no dict, and whatever a step chose to record."""
    return dict(value) if isinstance(value, Mapping) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _load(data: bytes, build: Callable[[Json], T], what: str) -> T:
    try:
        return build(orjson.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenContract(f"the bytes are no {what} ({type(error).__name__})", hint="Build it anew.", code="bad_pack") from error


def _bare(hit: Hit) -> Hit:
    return hit if hit.vector is None else replace(hit, vector=None)


def _with(raw: Json, **changed: Any) -> dict[str, Any]:
    return {**raw, **changed}


def _pairs(raw: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((first, second) for first, second in raw)


def _filter(raw: Json) -> Filter:
    value = raw["value"]
    return Filter(raw["name"], Op(raw["op"]), tuple(value) if isinstance(value, list) else value)  # pyright: ignore[reportUnknownArgumentType]


def _question(raw: Json) -> Question:
    parsed = _with(
        raw,
        collections=tuple(raw["collections"]),
        mode=Mode(raw["mode"]),
        filters=tuple(map(_filter, raw["filters"])),
        as_of=datetime.fromisoformat(raw["as_of"]) if raw["as_of"] else None,
        history=_pairs(raw["history"]),
        assist=tuple(raw.get("assist") or ()),
    )
    return Question(**parsed)


def _hit(raw: Json) -> Hit:
    return Hit(**_with(raw, heading_path=tuple(raw["heading_path"])))


def _evidence(raw: Json) -> Evidence:
    return Evidence(**_with(raw, hit=_hit(raw["hit"])))


def _usage(raw: Json) -> dict[str, Usage]:
    return {part: Usage(**figures) for part, figures in raw.items()}


def _steps(raw: Sequence[Json]) -> tuple[Step, ...]:
    return tuple(Step(**step) for step in raw)


def _pack(raw: Json) -> EvidencePack:
    parsed = _with(
        raw,
        question=_question(raw["question"]),
        evidence=tuple(map(_evidence, raw["evidence"])),
        hits=tuple(map(_hit, raw["hits"])),
        steps=_steps(raw["steps"]),
        usage=_usage(raw["usage"]),
    )
    return EvidencePack(**parsed)


def _grounding(raw: Json) -> Grounding:
    return Grounding(**_with(raw, unsupported=tuple(raw["unsupported"]), unsupported_sentences=tuple(raw["unsupported_sentences"])))


def _answer(raw: Json) -> Answer:
    parsed = _with(
        raw,
        citations=tuple(Citation(**citation) for citation in raw["citations"]),
        evidence=tuple(map(_evidence, raw["evidence"])),
        grounding=_grounding(raw["grounding"]),
        usage=_usage(raw["usage"]),
        steps=_steps(raw["steps"]),
    )
    return Answer(**parsed)
