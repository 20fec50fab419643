"""A connector that keeps none of its promises. `how` says in which way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from pipeline.contracts import RawDocument, SourceItem
from pipeline.contracts.sources import (
    AccessLost,
    Evidence,
    Json,
    Listed,
    Mark,
    ScanEvent,
    ScopeDone,
    ScopeFailed,
    SourceCheck,
    SourceKind,
    SourceOption,
    SourceSpec,
    Tombstone,
)
from pipeline.load.files import load
from pipeline.protocols import Surroundings

KIND = SourceKind("hostile", "Keeps no promise.", "tests.simulators.hostile:Hostile", (SourceOption("how", "In which way."),))
TEXT = "# A page\n\nThis page is about weather stations and their gauges."


@dataclass
class Liar:
    """No item at all."""

    key: str = "x"


class Hostile:
    """One good item, ``good``, stands beside whatever `how` names."""

    def __init__(self, spec: SourceSpec, around: Surroundings) -> None:
        self._how = spec.options.get("how", "")

    def validate(self) -> list[SourceCheck]:
        return [SourceCheck("nothing", True)]

    def scan(self, checkpoint: Json) -> Iterator[ScanEvent]:
        yield Listed(SourceItem("good", "1", "Good"), "main")
        yield from getattr(self, f"_{self._how}")()

    def _raises(self) -> Iterator[ScanEvent]:
        raise KeyError("an unexpected answer")

    def _repeats(self) -> Iterator[ScanEvent]:
        for _ in range(1000):
            yield Listed(SourceItem("good", "1", "Good"), "main")
        yield ScopeDone("main", 1)

    def _promises_more(self) -> Iterator[ScanEvent]:
        yield ScopeDone("main", 1000)

    def _promises_less(self) -> Iterator[ScanEvent]:
        yield Listed(SourceItem("other", "1", "Other"), "main")
        yield ScopeDone("main", -5)

    def _ends_without_a_word(self) -> Iterator[ScanEvent]:
        yield from ()

    def _ends_twice(self) -> Iterator[ScanEvent]:
        yield ScopeDone("main", 1)
        yield ScopeDone("main", 1)
        yield ScopeFailed("main", "odd", "it failed after it was done")

    def _floods(self) -> Iterator[ScanEvent]:
        for number in range(5000):
            yield Listed(SourceItem(f"page-{number}", "1", "Flood"), "main")
        yield ScopeDone("main", 5001)

    def _same_key_other_page(self) -> Iterator[ScanEvent]:
        yield Listed(SourceItem("good", "2", "Another"), "main")
        yield Listed(SourceItem("good", "3", "A third"), "elsewhere")
        yield ScopeDone("main", 1)
        yield ScopeDone("elsewhere", 0)

    def _climbs_out(self) -> Iterator[ScanEvent]:
        for key in ("../../../../etc/passwd", "/etc/passwd", "a/../../b", "..", "file:///etc/passwd"):
            yield Listed(SourceItem(key, "1", key, path=key, url=f"file://{key}"), "main")
        yield ScopeDone("main", 6)

    def _shouts(self) -> Iterator[ScanEvent]:
        loud = "LOUD" * 250_000
        yield Listed(SourceItem("loud", loud, loud, loud, loud, loud, loud, {"loud": "x"}), loud)
        yield Listed(SourceItem(loud, "1", "Long key"), "main")
        yield Listed(SourceItem("much", "1", "Much", metadata={"much": loud}), "main")
        yield ScopeFailed(loud, loud, loud, loud)

    def _mumbles(self) -> Iterator[ScanEvent]:
        yield Listed(SourceItem("", "", ""), "")
        yield Listed(SourceItem("nul\0key", "1\0", "nul\0title", metadata={"nul\0": "nul\0", "half": "\ud800"}), "nul\0scope")
        yield Listed(SourceItem("half\ud800key", "\ud800", "half\ud800title", "\ud800"), "half\ud800scope")
        yield Listed(SourceItem("odd", "1", "Odd", metadata=cast(Any, {"object": {"a": 1}, "self": object()})), "main")
        yield Tombstone("nul\0key", cast(Evidence, "a word that is no evidence at all"))
        yield AccessLost("\ud800", "\ud800")

    def _marks_first(self) -> Iterator[ScanEvent]:
        yield Mark({"at": 1})
        yield Mark({"at": 2})
        yield ScopeDone("main", 1)
        yield Mark({"at": 3})

    def _marks_badly(self) -> Iterator[ScanEvent]:
        yield Mark(cast(Json, {"at": object()}))

    def _marks_hugely(self) -> Iterator[ScanEvent]:
        yield Mark({"at": "x" * 2_000_000})

    def _gives_no_event(self) -> Iterator[ScanEvent]:
        yield cast(ScanEvent, 42)

    def _gives_no_item(self) -> Iterator[ScanEvent]:
        yield Listed(cast(SourceItem, Liar()), "main")

    def _deletes_what_it_never_had(self) -> Iterator[ScanEvent]:
        yield from [Tombstone(f"page-{number}", Evidence.DELETED) for number in range(300)]
        yield from [AccessLost(f"page-{number}") for number in range(300)]
        yield ScopeDone("main", 1)

    def _fetches_nothing(self) -> Iterator[ScanEvent]:
        for key in ("none", "text", "other", "bug"):
            yield Listed(SourceItem(key, "1", key), "main")
        yield ScopeDone("main", 5)

    def fetch(self, item: SourceItem) -> RawDocument:
        if item.key == "none":
            return cast(RawDocument, None)
        if item.key == "bug":
            raise IndexError("a bug of the connector")
        raw = load(item, TEXT.encode())
        if item.key == "text":
            return RawDocument(item, cast(bytes, TEXT), raw.sha256)
        if item.key == "other":
            return RawDocument(SourceItem("somebody else's"), raw.data, "no hash")
        return raw
