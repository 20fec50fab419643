"""Deletion on both kinds of parts: whatever stops it, and whoever comes late, what was deleted is gone and stays so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from pipeline.contracts import CollectionSpec, Question
from pipeline.errors import Conflict, NotFound, Unavailable
from pipeline.identity import index_name
from pipeline.stores import elasticsearch_expunge
from tests.deleted import MARKER as MARKED
from tests.deleted import Begun
from tests.system import settings_for, until
from workers import deleting, erasing, feeder, stages, withdrawal
from workers import generations as building
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.ledger import catalog, generations, outstanding, removal, schema
from workers.ledger.work import Issue
from workers.stage import run_stage
from workers.views import Incoming, RunView

MARKER = "quagga-orchid-cipher"
PARTS = {"embedded": (), "servers": ("postgres_database", "elasticsearch_url")}


@pytest.fixture(scope="module")
def begun(elasticsearch_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    made = Begun(elasticsearch_url, tmp_path_factory.mktemp("begun"))
    yield made
    made.close()


@pytest.fixture(params=sorted(PARTS))
def platform(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """SQLite and the embedded store, or PostgreSQL and Elasticsearch, whose files take half a minute to forget: here they forget at once."""
    names = PARTS[request.param]
    if names:
        request.getfixturevalue("begun")
        monkeypatch.setattr(elasticsearch_expunge, "kept", lambda copy: False)
    given = dict(zip(("ledger_url", "store_url"), (request.getfixturevalue(name) for name in names), strict=False))
    with open_platform(settings_for(tmp_path / "home", **given)) as opened:
        yield opened
        store = opened.runtime.open_store(opened.settings.store_url, writer=True)
        for tenant in ("default", "acme"):
            for row in catalog.every(opened.db, tenant):
                store.drop(index_name(tenant, row.name, row.generation))


def ingest(platform: Platform, *texts: str, collection: str = "handbook", tenant: str = "default", finish: bool = True) -> RunView:
    """Documents a.md, b.md …; they come with the request, so that their bytes lie in one pack."""
    items = [
        Incoming(key=f"{name}.md", title=f"Page {name}", data=f"# Page {name}\n\n{text}\n".encode())
        for name, text in zip("abcdefgh", texts, strict=False)
    ]
    run = platform.ingest(collection, items, tenant=tenant)
    return run_inline(platform.runtime, run.run_id) if finish and not run.finished else run


def build(platform: Platform, run: RunView) -> None:
    """Drive a reindex to its end, as workers and housekeeping do together."""
    windows = feeder.windows(platform.runtime.profile, processes=1, threads=1)
    pending: list[Issue] = []
    feeding = feeder.Feeder(platform.db, windows, pending.extend)
    while not platform.run(run.run_id).finished:
        feeding.tick()
        while pending:
            issue = pending.pop(0)
            feeding.send(run_stage(issue.batch_id, issue.token, platform.runtime) or [])
        building.advance(platform.runtime)


def identity_of(platform: Platform, key: str, collection: str = "handbook") -> str:
    return next(view.document_id for view in platform.documents(collection).data if view.document == key)


def found(platform: Platform, text: str) -> set[str]:
    return {hit.key for hit in platform.search(Question(text, ("handbook",), k=10)).hits if text in hit.text}


def nothing_outstanding(platform: Platform) -> bool:
    return not outstanding.listed(platform.db)


def texts_of_ledger(platform: Platform) -> list[str]:
    """table.column of every text in the ledger in which the marker stands."""
    found: list[str] = []
    with platform.db.read() as connection:
        for table in schema.metadata.sorted_tables:
            for row in connection.execute(select(table)).mappings():
                found += [f"{table.name}.{name}" for name, value in row.items() if isinstance(value, str) and MARKER in value]
    return found


def test_a_deleted_document_answers_no_more_and_comes_back_as_a_newer_version(platform: Platform) -> None:
    ingest(platform, f"The {MARKER} nests here.", "Another page.")
    document = identity_of(platform, "a.md")
    before = platform.document("handbook", document).version
    view = platform.deleting.documents("handbook", [document], dry_run=True)
    assert (view.documents, view.chunks, view.dry_run) == (1, 1, True) and found(platform, MARKER) == {"a.md"}
    assert platform.deleting.documents("handbook", [document]).outstanding == ()
    assert found(platform, MARKER) == set() and found(platform, "Another") == {"b.md"}
    assert platform.audit("handbook").ok and nothing_outstanding(platform)
    with pytest.raises(NotFound):
        platform.deleting.documents("handbook", [document])
    assert ingest(platform, f"The {MARKER} nests here.", "Another page.").indexed == 1
    assert found(platform, MARKER) == {"a.md"}
    after = platform.document("handbook", document).version
    assert before is not None and after is not None and after > before
    assert platform.audit("handbook").ok


def test_nothing_is_deleted_when_one_of_several_is_unknown(platform: Platform) -> None:
    ingest(platform, "One page.")
    with pytest.raises(NotFound):
        platform.deleting.documents("handbook", [identity_of(platform, "a.md"), "0" * 32])
    assert platform.collection("handbook").documents == 1


def test_a_worker_that_is_writing_while_its_document_is_deleted_does_not_bring_it_back(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    write = stages.indexing.index

    def late(store: object, name: str, documents: object) -> object:
        monkeypatch.setattr(stages.indexing, "index", write)
        platform.deleting.documents("handbook", [identity_of(platform, "a.md")])
        return write(store, name, documents)  # type: ignore[arg-type]

    monkeypatch.setattr(stages.indexing, "index", late)
    run = ingest(platform, f"The {MARKER} nests here.", "Another page.")
    assert (run.indexed, run.cancelled) == (1, 1)
    assert found(platform, MARKER) == set() and found(platform, "Another") == {"b.md"}
    assert platform.audit("handbook").ok and texts_of_ledger(platform) == []


def test_a_worker_that_comes_late_cannot_write_into_a_collection_that_was_made_again(platform: Platform) -> None:
    ingest(platform, f"The {MARKER} nests here.")
    old = catalog.find(platform.db, "default", "handbook")
    name = index_name(old.tenant, old.name, old.generation)
    platform.delete_collection("handbook")
    ingest(platform, "Another page.")
    new = catalog.find(platform.db, "default", "handbook")
    assert new.generation > old.generation
    store = platform.runtime.open_store(platform.settings.store_url, writer=True)
    store.ensure(CollectionSpec(name, old.dimension or 0))
    assert deleting.drop_late(platform.runtime) == [name]
    assert name not in store.collections() and platform.audit("handbook").ok


def cut_off(where: str, after: int = 0) -> tuple[object, str, Callable[..., object]]:
    """(module, name, replacement) that dies at its call number `after`."""
    module, name = {
        "store": (withdrawal, "out_of"),
        "text": (removal, "forget"),
        "end": (removal, "settle_documents"),
        "bytes": (erasing, "erase"),
        "pack": (removal, "drop_packs"),
        "collection": (removal, "forget_collection"),
        "tenant": (removal, "forget_tenant"),
    }[where]

    def dies(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    return module, name, dies


@pytest.mark.parametrize("where", ["store", "text", "end", "bytes", "pack"])
def test_a_deletion_that_was_killed_anywhere_is_finished_by_whoever_comes_next(
    platform: Platform, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(platform, f"The {MARKER} nests here.", "Another page.")
    document = identity_of(platform, "a.md")
    with monkeypatch.context() as patch:
        patch.setattr(*cut_off(where))
        with pytest.raises(KeyboardInterrupt):
            platform.deleting.documents("handbook", [document])
    assert erasing.left(platform.runtime) != ()
    monkeypatch.setattr(removal, "PATIENCE_S", -1.0)
    monkeypatch.setattr(erasing, "SETTLE_S", -1.0)
    assert deleting.due(platform.runtime)
    deleting.catch_up(platform.runtime)
    assert nothing_outstanding(platform) and not deleting.due(platform.runtime)
    assert found(platform, MARKER) == set() and texts_of_ledger(platform) == []
    assert platform.audit("handbook").ok and platform.collection("handbook").documents == 1


@pytest.mark.parametrize("where", ["collection", "tenant", "bytes"])
def test_a_tenant_whose_deletion_was_killed_is_gone_in_the_end(platform: Platform, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest(platform, f"The {MARKER} nests here.", tenant="acme", collection=f"plans-{MARKER}")
    ingest(platform, "Another page.")
    key = platform.create_key(MARKER, tenant="acme")
    platform.steering.weigh("acme", 3.0)
    with monkeypatch.context() as patch:
        patch.setattr(*cut_off(where))
        with pytest.raises(KeyboardInterrupt):
            platform.deleting.tenant("acme")
    assert platform.collections(tenant="acme").data == () and key.key is not None
    deleting.finish(platform.runtime)
    erasing.erase(platform.runtime)
    assert nothing_outstanding(platform) and texts_of_ledger(platform) == []
    with platform.db.read() as connection:
        for table in (schema.documents, schema.runs, schema.batches, schema.api_keys, schema.collections):
            assert connection.execute(select(table).where(table.c.tenant == "acme")).first() is None, table.name
    assert platform.audit().ok and found(platform, "Another") == {"a.md"}
    assert ingest(platform, "They begin again.", tenant="acme", collection="plans").indexed == 1
    assert platform.audit(tenant="acme").ok


def test_while_the_store_is_away_a_deletion_is_noted_and_finished_later(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest(platform, f"The {MARKER} nests here.", "Another page.")
    store = platform.runtime.open_store(platform.settings.store_url, writer=True)

    def away(*_: object, **__: object) -> int:
        raise Unavailable("the store is away", dependency=True)

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", away)
        view = platform.deleting.documents("handbook", [identity_of(platform, "a.md")])
    assert erasing.SAID[outstanding.DOCUMENTS] in view.outstanding
    with monkeypatch.context() as patch:
        patch.setattr(store, "drop", away)
        ingest(platform, "One page.", collection="other")
        assert erasing.SAID[outstanding.COLLECTION] in platform.deleting.collection("other").outstanding
        with pytest.raises(NotFound):
            platform.collection("other")
        with pytest.raises(Conflict):
            platform.create_collection("other")
    deleting.finish(platform.runtime)
    erasing.erase(platform.runtime)
    assert nothing_outstanding(platform) and found(platform, MARKER) == set()
    platform.create_collection("other")
    platform.delete_collection("other")


def test_a_document_that_is_taken_in_again_before_its_deletion_ended_stays(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest(platform, f"The {MARKER} nests here.", "Another page.")
    document = identity_of(platform, "a.md")
    with monkeypatch.context() as patch:
        patch.setattr(*cut_off("store"))
        with pytest.raises(KeyboardInterrupt):
            platform.deleting.documents("handbook", [document])
    assert ingest(platform, "A new text for the page.", "Another page.").indexed == 1
    deleting.finish(platform.runtime)
    erasing.erase(platform.runtime)
    assert found(platform, "new text") == {"a.md"} and found(platform, MARKER) == set()
    assert platform.audit("handbook").ok and nothing_outstanding(platform)


def test_every_generation_forgets_a_deleted_document(platform: Platform) -> None:
    ingest(platform, f"The {MARKER} nests here.", "Another page.")
    first = catalog.find(platform.db, "default", "handbook")
    build(platform, platform.generations.reindex("handbook", chunker="windows:32/0"))
    platform.deleting.documents("handbook", [identity_of(platform, "a.md")])
    second = catalog.find(platform.db, "default", "handbook")
    assert second.generation > first.generation
    for name in generations.indices(platform.db, second):
        assert len(platform.runtime.reader_store.versions(name)) == 1
    platform.delete_collection("handbook")
    assert not set(platform.runtime.reader_store.collections()) & {index_name("default", "handbook", row.generation) for row in (first, second)}


def test_what_the_ledger_says_of_a_deleted_document_is_gone_and_the_rest_stays(platform: Platform) -> None:
    run = ingest(platform, f"The {MARKER} nests here.", "Another page.")
    secret, other = identity_of(platform, "a.md"), identity_of(platform, "b.md")
    with platform.db.write() as connection:
        number = int(run.run_id.removeprefix("run_"))
        connection.execute(update(schema.run_items).where(schema.run_items.c.document_id == secret).values(detail=f"{MARKER} has no date"))
        connection.execute(update(schema.run_items).where(schema.run_items.c.document_id == other).values(detail="no date"))
        connection.execute(
            update(schema.documents).where(schema.documents.c.id == secret).values(key=f"{MARKER}.md", title=MARKER, path=f"/x/{MARKER}")
        )
        warnings = f'["{MARKER}.md was skipped", "others too"]'
        connection.execute(update(schema.runs).where(schema.runs.c.id == number).values(warnings=warnings, source=f"/x/{MARKER}"))
        for key, named in (("1", secret), ("2", other)):
            body = f'{{"content-type": "application/json"}}\n{{"document_id": "{named}", "text": "{MARKER if named == secret else "fine"}"}}'
            values = {"principal": "default/local", "route": "POST /ask", "key": key, "payload_hash": "h", "status": 200, "body": body, "at": 1.0}
            connection.execute(insert(schema.idempotency).values(**values))
    platform.deleting.documents("handbook", [secret])
    assert texts_of_ledger(platform) == []
    assert platform.run(run.run_id).warnings == ("others too",)
    assert {item.detail for item in platform.run_items(run.run_id).data} == {"", "no date"}
    assert platform.remember("default/local", "POST /ask", "2", "h") is not None
    gone = platform.remember("default/local", "POST /ask", "1", "h")
    assert gone is not None and gone[0] == 410


def test_the_files_of_elasticsearch_are_said_to_hold_a_deleted_document_until_they_do_not(begun: Begun) -> None:
    assert any(line.endswith(MARKED) for line in begun.before)
    assert begun.said == (erasing.SAID[outstanding.INDEX],)
    until(lambda: erasing.erase(begun.platform.runtime) == (), 90.0, "the files hold nothing of it")
    assert begun.holding() == []
    assert begun.platform.audit("secrets").ok
