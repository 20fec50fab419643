"""Every part is damaged on purpose: the audit names it, and a repair mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from pipeline.contracts import CollectionSpec
from pipeline.identity import index_name
from pipeline.settings import load
from pipeline.zstd import decompress
from workers import deleting, housekeeping
from workers.audit import machine
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.ledger import catalog, refs, removal
from workers.ledger.schema import collections, documents
from workers.views import Incoming, RunView

MARKER = "zanzibar-pelican-secret"
TEXTS = {f"doc{n}.md": f"# Document {n}\n\nStation {n} reports every hour. " + f"Its battery lasts {n} months. " * 30 for n in range(1, 7)}


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(load({"home": str(tmp_path / "home"), "embedder": "hashed"}, environ={}, cwd=tmp_path).settings) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path, platform: Platform) -> Path:
    made = tmp_path / "docs"
    made.mkdir()
    for name, text in TEXTS.items():
        (made / name).write_text(text)
    assert ingest(platform, made).indexed == 6
    return made


def ingest(platform: Platform, folder: Path) -> RunView:
    run = platform.ingest("handbook", [Incoming(key=path.name, path=str(path)) for path in sorted(folder.iterdir())])
    return run if run.finished else run_inline(platform.runtime, run.run_id)


def identity_of(platform: Platform, key: str) -> str:
    return next(view.document_id for view in platform.documents("handbook").data if view.document == key)


def name_of(platform: Platform) -> str:
    row = catalog.find(platform.db, "default", "handbook")
    return index_name(row.tenant, row.name, row.generation)


def lost_from_store(platform: Platform) -> None:
    platform.runtime.open_store(platform.settings.store_url, writer=True).delete(name_of(platform), [identity_of(platform, "doc1.md")])


def store_lost(platform: Platform) -> None:
    store = platform.runtime.open_store(platform.settings.store_url, writer=True)
    store.drop(name_of(platform))
    row = catalog.find(platform.db, "default", "handbook")
    store.ensure(CollectionSpec(name_of(platform), row.dimension or 0))


def foreign_in_store(platform: Platform) -> None:
    with platform.db.write() as connection:
        connection.execute(update(documents).where(documents.c.key == "doc2.md").values(live_version=None, status="skipped"))


def pack_lost(platform: Platform) -> None:
    row = catalog.find(platform.db, "default", "handbook")
    platform.runtime.artifacts.remove({ref.pack for ref in refs.answering(platform.db, row.id) if ref.stage.value == "chunk"})


def pack_damaged(platform: Platform) -> None:
    row = catalog.find(platform.db, "default", "handbook")
    ref = next(ref for ref in refs.answering(platform.db, row.id) if ref.stage.value == "parse")
    path = Path(platform.runtime.artifacts.shelf.where) / ref.pack
    data = bytearray(path.read_bytes())
    data[ref.start + 20 : ref.start + 40] = bytes(20)
    path.write_bytes(data)


def stranded(platform: Platform) -> None:
    with platform.db.write() as connection:
        connection.execute(update(documents).where(documents.c.key == "doc3.md").values(status="queued", stage="embed", batch_id=999_999))


@pytest.mark.parametrize(
    ("harm", "words", "deep"),
    [
        (lost_from_store, "is not in the store", False),
        (store_lost, "is not in the store", False),
        (foreign_in_store, "unknown to the ledger", False),
        (pack_lost, "kept output of chunk is missing", False),
        (pack_damaged, "kept output of parse is damaged", True),
        (stranded, "no open batch holds it", False),
    ],
)
def test_what_is_damaged_is_named_and_mended(platform: Platform, folder: Path, harm: Callable[[Platform], None], words: str, deep: bool) -> None:
    before = platform.audit("handbook").collections[0]
    assert platform.audit("handbook", deep=True).ok
    harm(platform)
    found = platform.audit("handbook", deep=deep)
    assert not found.ok and any(words in sentence for sentence in found.collections[0].differences), found
    assert platform.repair("handbook", deep=deep, dry_run=True).differences == found.collections[0].found
    assert not platform.audit("handbook", deep=deep).ok
    mended = platform.repair("handbook", deep=deep)
    for run in mended.runs:
        assert run_inline(platform.runtime, run).failed == 0
    after = platform.audit("handbook", deep=True)
    assert after.ok, after
    if harm is not foreign_in_store:
        assert after.collections[0].digest == before.digest
    assert platform.repair("handbook", deep=deep).runs == ()


def test_packs_that_nobody_names_go_when_they_are_old(platform: Platform, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platform.runtime.artifacts.shelf.put("parse/left-over.pack", [b"x"])
    assert platform.repair().orphans == 0
    monkeypatch.setattr(machine, "YOUNG_PACK_S", -1.0)
    assert platform.repair().orphans == 1
    assert "parse/left-over.pack" not in dict(platform.runtime.artifacts.packs())
    assert platform.audit(deep=True).ok


# ------------------------------------------------------------ deletion


def bytes_on_disk(home: Path) -> list[str]:
    """Files in which the marker stands, packs opened."""
    found: list[str] = []
    for path in home.rglob("*"):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if MARKER.encode() in data or any(MARKER.encode() in piece for piece in _opened(data)):
            found.append(str(path.relative_to(home)))
    return found


def _opened(data: bytes) -> Iterator[bytes]:
    magic = b"\x28\xb5\x2f\xfd"
    at = data.find(magic)
    while at >= 0:
        following = data.find(magic, at + 4)
        try:
            yield decompress(data[at : following if following >= 0 else len(data)])
        except Exception:  # a frame cut by our search, or followed by other bytes
            pass
        at = following


def forget_bytes(platform: Platform) -> None:
    """What the housekeeping does when it has time."""
    housekeeping.tidy(platform.runtime)
    for row in catalog.every(platform.db):
        platform.runtime.open_store(platform.settings.store_url, writer=True).expunge(index_name(row.tenant, row.name, row.generation))
    assert platform.db.expunge()


@pytest.fixture
def secret(platform: Platform, folder: Path) -> str:
    """A document whose text, title and metadata hold the marker, in a pack with others."""
    (folder / "secret.md").write_text(f"# {MARKER}\n\n" + f"The {MARKER} nests by the weir. " * 40)
    (folder / "beside.md").write_text("# Beside\n\nThis one stays.")
    ingest(platform, folder)
    assert bytes_on_disk(Path(platform.settings.home))
    return identity_of(platform, "secret.md")


def test_a_deleted_document_is_gone_down_to_the_bytes_and_its_neighbours_stay(platform: Platform, folder: Path, secret: str) -> None:
    platform.delete_document("handbook", secret)
    forget_bytes(platform)
    assert bytes_on_disk(Path(platform.settings.home)) == []
    assert platform.audit("handbook", deep=True).ok
    assert platform.collection("handbook").documents == 7
    (folder / "secret.md").unlink()
    assert ingest(platform, folder).unchanged == 7


def test_a_deleted_collection_is_gone_down_to_the_bytes(platform: Platform, secret: str) -> None:
    assert platform.delete_collection("handbook") == 8
    forget_bytes(platform)
    assert bytes_on_disk(Path(platform.settings.home)) == []


def test_a_deleted_tenant_leaves_nothing_of_its_own_and_others_alone(platform: Platform, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text(f"# {MARKER}\n\nText.")
    run = platform.ingest("theirs", [Incoming(key="x.md", path=str(tmp_path / "x.md"))], tenant="acme")
    run_inline(platform.runtime, run.run_id)
    assert platform.deleting.tenant("acme", dry_run=True).documents == 1
    assert platform.deleting.tenant("acme").collections == ("theirs",)
    (tmp_path / "x.md").unlink()
    forget_bytes(platform)
    assert bytes_on_disk(Path(platform.settings.home)) == []
    assert platform.runs(tenant="acme").data == () and platform.audit("handbook", deep=True).ok


@pytest.mark.parametrize("stop_after", ["detach", "store", "forget"])
def test_a_deletion_that_was_cut_off_is_finished_by_the_housekeeping(
    platform: Platform, secret: str, stop_after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"detach": (deleting.withdrawal, "_out_of_store"), "store": (removal, "forget"), "forget": (removal, "drop_packs")}[stop_after]
    with monkeypatch.context() as patch:
        patch.setattr(*where, _crash)
        with pytest.raises(KeyboardInterrupt):
            platform.delete_document("handbook", secret)
    monkeypatch.setattr(removal, "PATIENCE_S", -1.0)
    monkeypatch.setattr(housekeeping, "YOUNG_PACK_S", -1.0)
    housekeeping.tidy(platform.runtime)
    assert platform.audit("handbook", deep=True).ok
    assert not [view for view in platform.documents("handbook").data if view.document == "secret.md"]


def test_a_collection_whose_deletion_was_cut_off_is_gone_from_sight_at_once(
    platform: Platform, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(removal, "forget_collection", _crash)
        with pytest.raises(KeyboardInterrupt):
            platform.delete_collection("handbook")
    assert platform.collections().data == ()
    housekeeping.tidy(platform.runtime)
    with platform.db.read() as connection:
        assert connection.execute(collections.select()).first() is None
    assert ingest(platform, folder).indexed == 6
    assert platform.audit("handbook", deep=True).ok


def _crash(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
