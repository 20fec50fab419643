"""Harm to single parts, on both kinds of parts: an audit names it in a sentence, a repair mends it, and the digest is as if nothing had been."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import redis
from sqlalchemy import insert, update

from pipeline.contracts import CollectionSpec, Question, Stage
from pipeline.identity import index_name
from tests.system import settings_for
from workers.audit import machine
from workers.broker import keys
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.ledger import catalog, consistency, outstanding, refs, schema
from workers.ledger.work import Ref
from workers.views import Incoming, RunView

PARTS = {"embedded": (), "servers": ("postgres_database", "elasticsearch_url")}
TEXTS = {f"{name}.md": f"# Page {name}\n\n" + f"Station {name} reports every hour. " * 200 for name in "abcd"}


@pytest.fixture(params=sorted(PARTS))
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    """SQLite and the embedded store, or PostgreSQL and Elasticsearch; four documents from files and two that came with a request."""
    names = PARTS[request.param]
    given = dict(zip(("ledger_url", "store_url"), (request.getfixturevalue(name) for name in names), strict=False))
    (tmp_path / "docs").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "docs" / name).write_text(text)
    with open_platform(settings_for(tmp_path / "home", **given)) as opened:
        items = [Incoming(key=name, path=str(tmp_path / "docs" / name)) for name in TEXTS]
        items += [Incoming(key=f"{name}.md", data=f"# Sent {name}\n\n{'It was sent with a request. ' * 50}".encode()) for name in "xy"]
        assert finish(opened, opened.ingest("handbook", items)).indexed == 6
        yield opened
        store = opened.runtime.open_store(opened.settings.store_url, writer=True)
        for name in store.collections():
            if name in consistency.indices(opened.db):
                store.drop(name)


def finish(platform: Platform, run: RunView) -> RunView:
    return run if run.finished else run_inline(platform.runtime, run.run_id)


def identity_of(platform: Platform, key: str) -> str:
    return next(view.document_id for view in platform.documents("handbook").data if view.document == key)


def name_of(platform: Platform) -> str:
    row = catalog.find(platform.db, "default", "handbook")
    return index_name(row.tenant, row.name, row.generation)


def call(platform: Platform, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Past the store, straight to Elasticsearch."""
    url = platform.settings.store_url.removeprefix("elasticsearch+") + path
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def sql(platform: Platform, statement: str, *values: object) -> None:
    """Past the store, straight into its file."""
    path = Path(platform.settings.store_url.removeprefix("sqlite:///")) / f"{name_of(platform)}.db"
    connection = apsw.Connection(str(path if path.is_absolute() else Path("/") / path))
    connection.execute(statement, values)
    connection.close()


def embedded(platform: Platform) -> bool:
    return platform.settings.store_url.startswith("sqlite")


def chunk_lost(platform: Platform) -> None:
    document = identity_of(platform, "a.md")
    if embedded(platform):
        sql(platform, "DELETE FROM chunks WHERE id = (SELECT id + 1 FROM documents WHERE document_id = ?)", document)
    else:
        call(platform, "DELETE", f"/{name_of(platform)}/_doc/{document}:1:1?refresh=true")


def vectors_lost(platform: Platform) -> None:
    document = identity_of(platform, "b.md")
    if embedded(platform):
        sql(platform, "UPDATE vectors SET vectors = zeroblob(length(vectors)) WHERE id = (SELECT id FROM documents WHERE document_id = ?)", document)
    else:
        row = f"/{name_of(platform)}/_doc/{document}:1:0"
        source = call(platform, "GET", row)["_source"]
        source.pop("vector", None)
        call(platform, "PUT", f"{row}?refresh=true", source | {"embedded": False})


def document_lost(platform: Platform) -> None:
    store = platform.runtime.open_store(platform.settings.store_url, writer=True)
    store.delete(name_of(platform), [identity_of(platform, "x.md")])


def index_lost(platform: Platform) -> None:
    platform.runtime.open_store(platform.settings.store_url, writer=True).drop(name_of(platform))
    platform.runtime.__dict__["_ensured"].clear()


def ledger_older_than_the_store(platform: Platform) -> None:
    """As when the ledger comes from a backup: the store has a version that the ledger does not know."""
    document = identity_of(platform, "c.md")
    path = Path(platform.settings.home).parent / "docs" / "c.md"
    for text in (TEXTS["c.md"] + "One more line.\n", TEXTS["c.md"]):
        path.write_text(text)
        assert finish(platform, platform.ingest("handbook", [Incoming(key="c.md", path=str(path))])).indexed == 1
    with platform.db.write() as connection:
        old = schema.artifact_refs.c.document_id == document
        connection.execute(schema.artifact_refs.delete().where(old, schema.artifact_refs.c.version < 3))
        connection.execute(update(schema.artifact_refs).where(old).values(version=1))
        connection.execute(update(schema.documents).where(schema.documents.c.id == document).values(version=1, live_version=1))


def outputs(platform: Platform, key: str, stage: Stage) -> Ref:
    row = catalog.find(platform.db, "default", "handbook")
    return next(ref for ref in refs.answering(platform.db, row.id) if ref.document_id == identity_of(platform, key) and ref.stage is stage)


def flip(platform: Platform, ref: Ref) -> None:
    path = Path(platform.runtime.artifacts.shelf.where) / ref.pack
    data = bytearray(path.read_bytes())
    data[ref.start + ref.length // 2] ^= 0x10
    path.write_bytes(data)


def vector_flipped(platform: Platform) -> None:
    flip(platform, outputs(platform, "a.md", Stage.EMBED))


def text_flipped(platform: Platform) -> None:
    flip(platform, outputs(platform, "b.md", Stage.PARSE))


def pack_cut(platform: Platform) -> None:
    path = Path(platform.runtime.artifacts.shelf.where) / outputs(platform, "a.md", Stage.CHUNK).pack
    path.write_bytes(path.read_bytes()[:-1])


def everything_lost(platform: Platform) -> None:
    """Of documents from files, no output is left, and the store is empty."""
    with platform.db.write() as connection:
        connection.execute(schema.documents.delete().where(schema.documents.c.key.in_(("x.md", "y.md"))))
    shutil.rmtree(Path(platform.runtime.artifacts.shelf.where))
    index_lost(platform)


def run_closed_too_early(platform: Platform) -> None:
    document = identity_of(platform, "d.md")
    with platform.db.write() as connection:
        mine = schema.documents.c.id == document
        connection.execute(update(schema.documents).where(mine).values(status="ready", stage="chunk", batch_id=None))
        connection.execute(update(schema.run_items).where(schema.run_items.c.document_id == document).values(outcome="pending"))


def batch_closed_too_early(platform: Platform) -> None:
    with platform.db.write() as connection:
        mine = schema.documents.c.key == "d.md"
        connection.execute(update(schema.documents).where(mine).values(status="queued", stage="embed", batch_id=1))


HARMS: list[tuple[Callable[[Platform], None], str, bool]] = [
    (chunk_lost, "chunks according to the ledger", False),
    (vectors_lost, "vectors in the store", False),
    (document_lost, "is not in the store", False),
    (index_lost, "is not in the store", False),
    (ledger_older_than_the_store, "according to the ledger", False),
    (vector_flipped, "kept output of embed is damaged", True),
    (text_flipped, "kept output of parse is damaged", True),
    (pack_cut, "kept output of chunk is cut short", False),
    (everything_lost, "kept output of load is missing", False),
    (run_closed_too_early, "the run that it waits for has ended", False),
    (batch_closed_too_early, "no open batch holds it", False),
]


@pytest.mark.parametrize(("harm", "words", "deep"), HARMS, ids=[harm.__name__ for harm, *_ in HARMS])
def test_harm_to_one_part_is_named_and_mended(platform: Platform, harm: Callable[[Platform], None], words: str, deep: bool) -> None:
    before = platform.audit("handbook", deep=True)
    assert before.ok, before
    harm(platform)
    found = platform.audit("handbook", deep=deep)
    told = [finding for finding in found.collections[0].findings if words in finding.detail]
    assert told and all(finding.mends for finding in told), found
    assert platform.repair("handbook", deep=deep, dry_run=True).runs == ()
    for run in platform.repair("handbook", deep=deep).runs:
        assert run_inline(platform.runtime, run).failed == 0
    after = platform.audit("handbook", deep=True)
    assert after.ok, after
    if harm is not everything_lost:
        assert after.collections[0].digest == before.collections[0].digest
    assert after.collections[0].documents == (4 if harm is everything_lost else 6)
    assert platform.repair("handbook", deep=deep).differences == 0


def test_bytes_that_nobody_has_any_more_are_said_to_be_lost_and_what_answers_goes_on(platform: Platform) -> None:
    flip(platform, outputs(platform, "x.md", Stage.LOAD))
    document_lost(platform)
    found = platform.audit("handbook", deep=True).collections[0].findings
    assert [(finding.kind, finding.mends) for finding in found] == [("missing", True), ("output", False)]
    mended = platform.repair("handbook", deep=True)
    assert len(mended.unmended) == 1 and "only whoever has it" in mended.unmended[0]
    for run in mended.runs:
        assert run_inline(platform.runtime, run).indexed == 1
    assert platform.audit("handbook").collections[0].documents == 6
    assert [finding.mends for finding in platform.audit("handbook", deep=True).collections[0].findings] == [False]


def test_an_index_that_comes_back_with_a_backup_loses_what_was_deleted_since(platform: Platform, tmp_path: Path) -> None:
    """The store of yesterday beside the ledger of today, as after a disk was lost."""
    store, document = platform.runtime.open_store(platform.settings.store_url, writer=True), identity_of(platform, "a.md")
    restore = backed_up(platform, tmp_path)
    platform.deleting.documents("handbook", [document])
    restore()
    (finding,) = platform.audit("handbook").collections[0].findings
    assert finding.kind == "revived" and finding.document_id == document and "deleted at" in finding.detail
    assert platform.repair("handbook").removed == 1
    assert document not in store.versions(name_of(platform)) and platform.audit("handbook", deep=True).ok
    assert not [hit for hit in platform.search(Question("Station a reports", ("handbook",), k=10)).hits if hit.key == "a.md"]


def backed_up(platform: Platform, tmp_path: Path) -> Callable[[], None]:
    """What puts the index back as it is now."""
    name = name_of(platform)
    store = platform.runtime.open_store(platform.settings.store_url, writer=True)
    if embedded(platform):
        live = Path("/") / platform.settings.store_url.removeprefix("sqlite:///") / f"{name}.db"
        kept = tmp_path / "backup.db"
        connection = apsw.Connection(str(live))
        connection.execute("VACUUM INTO ?", (str(kept),))
        connection.close()

        def restore() -> None:
            store.drop(name)
            shutil.copy(kept, live)

        return restore
    call(platform, "POST", f"/{name},{name}-documents/_refresh")
    for alias in (name, f"{name}-documents"):
        call(platform, "PUT", f"/{alias}-000001/_settings", {"index.blocks.write": True})
        call(platform, "POST", f"/{alias}-000001/_clone/backup-{alias}", {"aliases": {}})
        call(platform, "PUT", f"/{alias}-000001/_settings", {"index.blocks.write": None})

    def back() -> None:
        store.drop(name)
        for alias in (name, f"{name}-documents"):
            call(platform, "POST", f"/backup-{alias}/_clone/{alias}-000001", {"aliases": {alias: {}}, "settings": {"index.blocks.write": None}})
            call(platform, "DELETE", f"/backup-{alias}")
        call(platform, "GET", f"/_cluster/health/{name},{name}-documents?wait_for_status=yellow&timeout=30s")

    return back


def test_the_index_of_a_deleted_collection_that_comes_back_is_removed(platform: Platform) -> None:
    name, row = name_of(platform), catalog.find(platform.db, "default", "handbook")
    platform.delete_collection("handbook")
    store = platform.runtime.open_store(platform.settings.store_url, writer=True)
    store.ensure(CollectionSpec(name, row.dimension or 0))
    found = platform.audit()
    assert not found.ok and [finding.kind for finding in found.findings] == ["index"] and found.differences[0].startswith(name)
    platform.repair()
    assert name not in store.collections() and platform.audit().ok


def test_what_belongs_to_no_collection_is_named_and_mended(platform: Platform, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    platform.runtime.artifacts.shelf.put("parse/left-over.pack", [b"x"])
    monkeypatch.setattr(machine, "YOUNG_PACK_S", -1.0)
    with platform.db.write() as connection:
        outstanding.ask(connection, outstanding.LEDGER, [outstanding.ITSELF], 1.0)
        values = {"tenant": "default", "collection_id": "c", "stages": "embed", "lane": "bulk", "queue": "dujiang.embed.bulk", "status": "leased"}
        connection.execute(insert(schema.batches).values(**values, owner="gone:1:1", lease_until=1.0, deadline=1.0, created_at=1.0))
    object.__setattr__(platform.runtime.settings, "redis_url", redis_url)
    with redis.Redis.from_url(redis_url) as client:
        client.set("dujiang.forgotten", "x")
        found = platform.audit()
        assert sorted(finding.kind for finding in found.findings) == ["deletion", "endless", "lease", "orphan"] and not found.ok
        assert platform.repair(dry_run=True).differences == 4 and not platform.audit().ok
        platform.repair()
        assert 0 < int(str(client.ttl("dujiang.forgotten"))) <= keys.DAY_S
    assert platform.audit().ok, platform.audit()
