"""What nobody names any more leaves the shelf, also out of packs that others need: a folder and a bucket, both ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import update

from pipeline.contracts import Stage
from pipeline.errors import Unavailable
from pipeline.settings import Settings
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3Server
from workers.artifacts import Artifacts, Entry, compaction, open_artifacts
from workers.ledger import batches, refs, schema
from workers.ledger.engine import Database
from workers.ledger.work import Ref

SECRET = b"what must not stay " * 3
KEPT = b"what others need " * 3


@dataclass
class Shelves:
    db: Database
    artifacts: Artifacts

    def write(self, pack: str, *entries: tuple[str, bytes], version: int = 1) -> list[Ref]:
        """One pack, named in the ledger."""
        written = self.artifacts.write(pack, [Entry(name, version, Stage.PARSE, f"key-{name}", data, compress=False) for name, data in entries])
        self.name(written)
        return written

    def name(self, written: list[Ref]) -> None:
        with self.db.write() as connection:
            batches.write_refs(connection, written, self.db.now(connection))

    def read(self, *documents: str, version: int = 1) -> list[bytes]:
        """What the ledger's references lead to."""
        found = refs.of(self.db, Stage.PARSE, dict.fromkeys(documents, version))
        return self.artifacts.read([found[name] for name in documents])

    def bytes(self) -> bytes:
        """Everything that lies on the shelf."""
        return b"".join(self.artifacts.shelf.get(pack, [(0, size)])[0] for pack, _, size in self.artifacts.shelf.packs())

    def forget(self, *documents: str) -> None:
        with self.db.write() as connection:
            connection.execute(schema.artifact_refs.delete().where(schema.artifact_refs.c.document_id.in_(documents)))


@pytest.fixture(scope="module")
def postgresql(postgres: Postgres) -> Iterator[Database]:
    """One ledger for all tests of this file: making one takes longer than they do."""
    yield from _migrated(postgres.url(postgres.create_database()))


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    yield from _migrated(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db")


def _migrated(url: str) -> Iterator[Database]:
    db = Database(url)
    db.migrate()
    yield db
    db.close()


@pytest.fixture(params=["folder and sqlite", "s3 and postgresql"])
def shelves(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelves]:
    settings = Settings(artifacts_url=f"file://{tmp_path}/artifacts")
    if request.param == "s3 and postgresql":
        server: S3Server = request.getfixturevalue("s3_server")
        server.bucket("packs")
        settings = replace(settings, **server.settings("packs", uuid4().hex))
    db: Database = request.getfixturevalue(request.param.rpartition(" ")[2])
    yield Shelves(db, open_artifacts(settings))
    with db.write() as connection:
        for table in (schema.artifact_refs, schema.documents):
            connection.execute(table.delete())


def tidy(shelves: Shelves, *, young_s: float = -60.0) -> int:
    """As if every pack had been there for long."""
    return compaction.tidy(shelves.db, shelves.artifacts, young_s=young_s)


def test_a_shared_pack_is_written_anew_without_what_nobody_names(shelves: Shelves) -> None:
    shelves.write("parse/1-1", ("a", KEPT), ("secret", SECRET), ("b", b"b" + KEPT))
    shelves.forget("secret")
    for _ in range(2):
        compaction.scrub(shelves.db, shelves.artifacts, ["parse/1-1.pack"])
        assert shelves.read("a", "b") == [KEPT, b"b" + KEPT]
        assert SECRET not in shelves.bytes() and len(list(shelves.artifacts.packs())) == 1


def test_a_pack_whose_last_document_goes_is_removed(shelves: Shelves) -> None:
    shelves.write("parse/1-1", ("secret", SECRET))
    shelves.forget("secret")
    compaction.scrub(shelves.db, shelves.artifacts, ["parse/1-1.pack"])
    assert list(shelves.artifacts.packs()) == []


def test_documents_that_share_an_output_share_it_afterwards(shelves: Shelves) -> None:
    (one, _) = shelves.write("parse/1-1", ("a", KEPT), ("secret", SECRET))
    shelves.name([replace(one, document_id="twin")])
    shelves.forget("secret")
    compaction.scrub(shelves.db, shelves.artifacts, ["parse/1-1.pack"])
    assert shelves.read("a", "twin") == [KEPT, KEPT]
    assert shelves.bytes().count(KEPT) == 1


def test_killed_between_the_copy_and_the_ledger_nothing_is_lost_and_the_copy_goes(shelves: Shelves, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    shelves.write("parse/1-1", ("a", KEPT), ("secret", SECRET))
    shelves.forget("secret")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(refs, "moved", killed)
        compaction.scrub(shelves.db, shelves.artifacts, ["parse/1-1.pack"])
    assert shelves.read("a") == [KEPT] and len(list(shelves.artifacts.packs())) == 2
    compaction.scrub(shelves.db, shelves.artifacts, ["parse/1-1.pack"])
    tidy(shelves)
    assert shelves.read("a") == [KEPT] and len(list(shelves.artifacts.packs())) == 1 and SECRET not in shelves.bytes()


def test_what_a_batch_names_in_the_meantime_is_not_lost(shelves: Shelves, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, late) = shelves.write("parse/1-1", ("a", KEPT), ("b", b"b" + KEPT))
    shelves.forget("b")
    real, times = shelves.artifacts.rewrite, [0]

    def slow(pack: str, keep: list[Ref], name: str) -> dict[int, Ref]:
        moved = real(pack, keep, name)
        times[0] += 1
        if times[0] == 1:
            shelves.name([late])
        return moved

    monkeypatch.setattr(shelves.artifacts, "rewrite", slow)
    compaction.scrub(shelves.db, shelves.artifacts, ["parse/1-1.pack"])
    assert shelves.read("a", "b") == [KEPT, b"b" + KEPT]
    assert "parse/1-1.pack" not in dict(shelves.artifacts.packs())


def test_a_pack_that_is_named_again_and_again_is_left_and_said_to_be_busy(shelves: Shelves, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, late) = shelves.write("parse/1-1", ("a", KEPT), ("b", b"b" + KEPT))
    real = refs.moved

    def again(db: Database, pack: str, *rest: object) -> None:
        real(db, pack, *rest)  # type: ignore[arg-type]
        shelves.name([late])

    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="parse/1-1"):
        patch.setattr(refs, "moved", again)
        compaction.scrub(shelves.db, shelves.artifacts, ["parse/1-1.pack"])
    assert shelves.read("a", "b") == [KEPT, b"b" + KEPT]


def test_what_was_cut_off_from_outside_is_named_no_more_and_its_neighbours_stay(shelves: Shelves) -> None:
    first, _ = shelves.write("parse/1-1", ("a", KEPT), ("b", KEPT))
    shelves.artifacts.shelf.put("parse/1-1.pack", [shelves.bytes()[:-5]])
    assert shelves.artifacts.read([first]) == [KEPT]
    compaction.scrub(shelves.db, shelves.artifacts, ["parse/1-1.pack"])
    assert shelves.read("a") == [KEPT] and refs.of(shelves.db, Stage.PARSE, {"b": 1}) == {}


def test_bytes_of_a_stage_that_was_done_again_leave_the_pack_that_others_need(shelves: Shelves) -> None:
    shelves.write("parse/1-1", ("a", KEPT), ("b", SECRET))
    shelves.write("parse/2-1", ("b", b"done again"))
    assert tidy(shelves, young_s=3600.0) == 0 and SECRET in shelves.bytes(), "young packs are left alone"
    assert tidy(shelves) == 1
    assert shelves.read("a", "b") == [KEPT, b"done again"] and SECRET not in shelves.bytes()
    assert tidy(shelves) == 0


def test_packs_that_nobody_ever_named_go_once_they_are_old(shelves: Shelves) -> None:
    shelves.artifacts.write("parse/9-1", [Entry("a", 1, Stage.PARSE, "k", SECRET)])
    tidy(shelves, young_s=3600.0)
    assert len(list(shelves.artifacts.packs())) == 1
    assert tidy(shelves) == 1 and list(shelves.artifacts.packs()) == []


def test_what_a_late_batch_names_of_a_deleted_document_is_forgotten(shelves: Shelves) -> None:
    with shelves.db.write() as connection:
        same = {"tenant": "t", "collection_id": "c", "run_id": 1, "lane": "bulk", "route": "fused", "stage": "index", "status": "done"}
        rows = [{**same, "id": name, "key": name, "updated_at": shelves.db.now(connection)} for name in ("a", "secret")]
        connection.execute(schema.documents.insert(), rows)
        connection.execute(update(schema.documents).where(schema.documents.c.id == "secret").values(status="deleted"))
    shelves.write("parse/1-1", ("a", KEPT), ("secret", SECRET))
    tidy(shelves)
    assert shelves.read("a") == [KEPT] and SECRET not in shelves.bytes()
