"""Contributions for tests, and graphs to put them into."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from itertools import combinations

from graphrag import fold
from graphrag.contracts import ChunkRef, Contribution, Link, Mention
from graphrag.records import dump_entity, dump_parts, dump_relation, load_part, squeeze
from pipeline.contracts.graph import ELEMENTS
from pipeline.protocols import GraphRecords


class Killed(Exception):
    """In place of a process that dies at this call."""


def hashed(*words: object) -> str:
    return hashlib.blake2b(repr(words).encode(), digest_size=16).hexdigest()


def contribution(name: str, version: int, said: Sequence[str], *, extractor: str = "terms:1") -> Contribution:
    """Each text is a chunk, its words are entities, and each two of them a relation."""
    document = hashed("document", name)
    chunks: list[ChunkRef] = []
    mentions: list[Mention] = []
    links: list[Link] = []
    start = 0
    for ordinal, text in enumerate(said):
        chunks.append(ChunkRef(hashed(name, text), ordinal, start, start + len(text)))
        words = sorted({word.casefold(): word for word in text.split()}.items())
        for key, word in words:
            at = start + text.index(word)
            kind = "PLACE" if word[0].isupper() else "TERM"
            mentions.append(Mention(key, word, kind, ordinal, at, at + len(word), text.casefold().split().count(key), f"{word} in {name}"))
        for (one, _), (other, _) in combinations(words, 2):
            links.append(Link(one, other, ordinal, start, start + len(text), 0.1 + len(one), "", (one[:1],)))
        start += len(text) + 1
    return Contribution(document, version, extractor, tuple(chunks), tuple(mentions), tuple(links))


def synthetic(number: int, *, entities: int = 36, vocabulary: int = 20_000, chunks: int = 4) -> Contribution:
    """A document of a big load: entities by a power law, five links for each four of them."""
    draw = random.Random(number)
    keys = sorted({f"entity {int(vocabulary * draw.random() ** 3)}" for _ in range(entities)})
    document = hashed("synthetic", number)
    refs = tuple(ChunkRef(hashed(document, place), place, 900 * place, 900 * place + 900) for place in range(chunks))
    places = {key: place * chunks // len(keys) for place, key in enumerate(keys)}
    mentions = tuple(
        sorted(
            (Mention(key, key.title(), "term", at, 900 * at + draw.randrange(800), 900 * at + 899) for key, at in places.items()),
            key=lambda one: (one.chunk, one.start, one.key),
        )
    )
    pairs = {tuple(sorted(draw.sample(keys, 2))) for _ in range(entities * 5 // 4)}
    links = tuple(
        sorted(
            (Link(one, other, places[one], 900 * places[one], 900 * places[one] + 120) for one, other in pairs),
            key=lambda one: (one.chunk, one.source, one.target),
        )
    )
    return Contribution(document, 1, "terms:1", refs, mentions, links)


def folded(contributions: Iterable[Contribution]) -> dict[str, bytes]:
    """Id → bytes of every element, straight from the contributions."""
    statements = fold.Statements()
    for one in contributions:
        for part in dump_parts(one):
            statements.take(load_part(squeeze(part)))
    return {one.id: dump_entity(one) for one in statements.entities()} | {one.id: dump_relation(one) for one in statements.relations()}


def stored(records: GraphRecords, collection: str) -> dict[str, bytes]:
    """The same as it stands in the store."""
    return {one.id: one.body for kind in ELEMENTS for one in records.scan(collection, kind)}


class Dying:
    """`GraphRecords` whose caller dies at the call with this number, from 1: before it has any effect, or after."""

    def __init__(self, inner: GraphRecords, at: int, *, after: bool = False) -> None:
        self._inner, self._left, self._after = inner, at, after

    def __getattr__(self, name: str) -> object:
        call = getattr(self._inner, name)

        def counted(*args: object, **options: object) -> object:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            answer = call(*args, **options)
            if self._left == 0:
                raise Killed
            return answer

        return counted
