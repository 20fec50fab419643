"""Outputs that somebody made before are taken over; where they are gone, damaged or elsewhere by now, the document is not at fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.contracts import Stage
from tests.system import markdown, settings_for
from workers import verdict
from workers.artifacts import compaction
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.ledger import refs, schema
from workers.ledger.work import Ref
from workers.views import Incoming, RunView

NAMES = ("a", "b", "c")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 0.0)
    with open_platform(settings_for(tmp_path)) as opened:
        yield opened


def ingest(platform: Platform, collection: str) -> RunView:
    items = [Incoming(f"{name}.md", data=markdown(number).encode()) for number, name in enumerate(NAMES)]
    return run_inline(platform.runtime, platform.ingest(collection, items).run_id)


def parsed(platform: Platform) -> list[str]:
    """From now on, keys of the documents that are parsed."""
    keys: list[str] = []
    real = platform.runtime.parse

    def counting(raws: Sequence[Any], options: Any) -> Any:
        keys.extend(raw.item.key for raw in raws)
        return real(raws, options)

    platform.runtime.parse = counting  # type: ignore[method-assign]
    return keys


def outputs(platform: Platform, stage: Stage) -> list[Ref]:
    with platform.db.read() as connection:
        packs = list(connection.scalars(schema.artifact_refs.select().with_only_columns(schema.artifact_refs.c.pack).distinct()))
    return [ref for pack in packs for ref in refs.of_pack(platform.db, pack) if ref.stage is stage]


def attempts(platform: Platform) -> int:
    with platform.db.read() as connection:
        return len(connection.execute(schema.attempts.select()).all())


def test_what_was_parsed_for_another_collection_is_not_parsed_again(platform: Platform) -> None:
    ingest(platform, "first")
    keys = parsed(platform)
    assert ingest(platform, "second").indexed == len(NAMES) and keys == []


@pytest.mark.parametrize("harm", ["missing", "cut", "garbled"])
def test_a_reused_parse_that_is_gone_or_damaged_is_parsed_anew_at_no_cost(platform: Platform, harm: str) -> None:
    ingest(platform, "first")
    shelf = platform.runtime.artifacts.shelf
    for pack in {ref.pack for ref in outputs(platform, Stage.PARSE)}:
        size = next(size for name, _, size in shelf.packs() if name == pack)
        whole = shelf.get(pack, [(0, size)])[0]
        if harm == "missing":
            shelf.remove([pack])
        else:
            shelf.put(pack, [whole[:3] if harm == "cut" else bytes(size)])
    keys = parsed(platform)
    run = ingest(platform, "second")
    assert (run.indexed, run.failed, attempts(platform)) == (len(NAMES), 0, 0)
    assert sorted(keys) == [f"{name}.md" for name in NAMES]
    assert platform.audit("second", deep=True).ok


def test_one_damaged_reused_parse_leaves_its_neighbours_theirs(platform: Platform) -> None:
    ingest(platform, "first")
    shelf, found = platform.runtime.artifacts.shelf, outputs(platform, Stage.PARSE)
    last = max(found, key=lambda ref: ref.start)
    shelf.put(last.pack, [shelf.get(last.pack, [(0, last.start)])[0]])
    keys = parsed(platform)
    assert ingest(platform, "second").indexed == len(NAMES)
    assert len(keys) == 1


def test_a_pack_that_is_written_anew_while_a_batch_is_about_to_read_it_costs_no_attempt(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    real, moved = platform.runtime.artifacts.each, set[str]()

    def late(wanted: Sequence[Ref]) -> Any:
        for pack in {ref.pack for ref in wanted} - moved:
            if "~" not in pack:
                moved.add(pack)
                compaction.scrub(platform.db, platform.runtime.artifacts, [pack])
        return real(wanted)

    monkeypatch.setattr(platform.runtime.artifacts, "each", late)
    run = ingest(platform, "docs")
    assert moved and (run.indexed, run.failed, attempts(platform)) == (len(NAMES), 0, 0)
