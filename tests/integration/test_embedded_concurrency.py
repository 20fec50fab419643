"""The embedded store under other processes, threads, kills and failing disks."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from pipeline.contracts import CollectionSpec, StoreQuery
from pipeline.errors import BadRequest, Conflict, Malformed, NotFound, Unavailable
from pipeline.stores.embedded import EmbeddedStore
from tests.stored import DIMENSION, lexical, numbered, stored, vector_of

ROOT = Path(__file__).parents[2]
NAME = "dujiang-0123456789abcdef-g1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(str(folder))
    opened.ensure(CollectionSpec(NAME, DIMENSION))
    yield opened
    opened.close()


def writer(folder: Path, first: int, count: int, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stored", f"sqlite:///{folder}", NAME, str(first), str(count), *flags]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str], lines: int) -> list[tuple[int, int]]:
    """(document, version) of what the writer says it has written."""
    assert process.stdout is not None
    found: list[tuple[int, int]] = []
    for line in process.stdout:
        number, version = line.split()
        found.append((int(number), int(version)))
        if len(found) >= lines:
            break
    return found


def test_a_killed_writer_leaves_whole_documents_only(folder: Path, store: EmbeddedStore) -> None:
    """Whatever it said was written is there, in that version or a later one, with all its chunks, terms and vectors."""
    promised: dict[int, int] = {}
    for round_ in range(4):
        process = writer(folder, 0, 7, "--forever")
        promised |= dict(said(process, random.Random(round_).randint(3, 30)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        audit = store.audit(NAME)
        assert (audit.chunks, audit.vectors) == (3 * audit.documents, 3 * audit.documents)
        for number in promised:
            document = numbered(number)
            version = audit.versions[document.document_id]
            assert version >= 1
            text = store.text(NAME, document.document_id)
            assert text == numbered(number, version).parsed.text
        shown = store.search(NAME, StoreQuery(vector=vector_of("x"), k=100))
        assert {(hit.document_id, hit.version) for hit in shown} == set(audit.versions.items())
        by_terms = store.search(NAME, lexical("paragraph", k=100))
        assert {(hit.document_id, hit.version) for hit in by_terms} == set(audit.versions.items()) and len(by_terms) == audit.chunks
    store.close()
    checked = apsw.Connection(str(folder / f"{NAME}.db"))
    assert checked.pragma("integrity_check") == "ok"
    checked.close()


def test_a_reader_never_sees_half_a_document_while_others_write(folder: Path, store: EmbeddedStore) -> None:
    writers = [writer(folder, 0, 5, "--forever"), writer(folder, 5, 5, "--forever")]
    reader = EmbeddedStore(str(folder), writer=False)
    try:
        for process in writers:
            said(process, 5)
        for _ in range(60):
            for query in (StoreQuery(vector=vector_of("x"), k=100), lexical("paragraph", k=100)):
                found = reader.search(NAME, query)
                assert len(found) == 30
                assert all(f"version{hit.version}" in hit.text.split()[-1] for hit in found)
                assert len({(hit.document_id, hit.version) for hit in found}) == 10
    finally:
        for process in writers:
            process.kill()
            process.communicate()
        reader.close()


def test_threads_share_one_store(store: EmbeddedStore) -> None:
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for step in range(8):
                store.write(NAME, [numbered(thread * 100 + step)])
                assert store.search(NAME, StoreQuery(vector=vector_of("x"), k=3))
                store.frequencies(NAME, ["paragraph"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert store.audit(NAME).documents == 32


def test_a_forked_child_opens_files_of_its_own(store: EmbeddedStore) -> None:
    store.write(NAME, [numbered(1)])
    store.search(NAME, StoreQuery(vector=vector_of("x")))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.write(NAME, [numbered(2)])
            code = 0 if len(store.search(NAME, StoreQuery(vector=vector_of("x")))) == 6 else 2
            store.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.write(NAME, [numbered(3)])
    assert store.audit(NAME).documents == 3


def test_a_store_that_does_not_exist_is_not_created_by_reading(folder: Path) -> None:
    reader = EmbeddedStore(f"sqlite:///{folder}", writer=False)
    for call in (
        lambda: reader.search(NAME, lexical("x")),
        lambda: reader.audit(NAME),
        lambda: reader.text(NAME, "d"),
        lambda: reader.vectors(NAME, "d"),
    ):
        with pytest.raises(NotFound):
            call()
    for write in (lambda: reader.ensure(CollectionSpec(NAME, 8)), lambda: reader.delete(NAME, ["d"]), lambda: reader.drop(NAME)):
        with pytest.raises(Conflict):
            write()
    reader.close()
    assert not folder.exists()


def test_a_collection_dropped_and_made_anew_by_another_process_is_seen(folder: Path, store: EmbeddedStore) -> None:
    store.write(NAME, [numbered(1)])
    assert len(store.search(NAME, StoreQuery(vector=vector_of("x")))) == 3
    other = EmbeddedStore(str(folder))
    other.drop(NAME)
    with pytest.raises(NotFound):
        store.write(NAME, [numbered(2)])
    other.ensure(CollectionSpec(NAME, DIMENSION))
    assert store.search(NAME, StoreQuery(vector=vector_of("x"))) == []
    store.write(NAME, [numbered(2)])
    assert other.audit(NAME).documents == 1
    assert sorted(path.name for path in folder.iterdir() if "dropped" in path.name) == []
    other.close()


def test_a_half_made_collection_of_a_killed_process_is_completed(folder: Path) -> None:
    folder.mkdir()
    (folder / f"{NAME}.db").touch()
    store = EmbeddedStore(str(folder))
    with pytest.raises(NotFound):
        store.audit(NAME)
    store.ensure(CollectionSpec(NAME, DIMENSION))
    assert store.write(NAME, [numbered(1)])[0].written
    store.close()


def test_a_damaged_file_is_named(folder: Path, store: EmbeddedStore) -> None:
    store.write(NAME, [numbered(1)])
    store.close()
    path = folder / f"{NAME}.db"
    path.write_bytes(b"this is no database, but long enough to be read as one" * 200)
    with pytest.raises(Malformed) as refused:
        store.audit(NAME)
    assert str(path) in refused.value.detail and refused.value.hint


def test_a_file_where_the_folder_should_be_is_named(folder: Path) -> None:
    folder.write_text("not a folder")
    store = EmbeddedStore(str(folder))
    with pytest.raises(Malformed) as refused:
        store.ensure(CollectionSpec(NAME, DIMENSION))
    assert str(folder) in refused.value.detail


def test_a_full_disk_costs_no_attempt_and_loses_nothing(folder: Path, store: EmbeddedStore) -> None:
    """A limit on the size of files stands for the disk: SQLite is told that a write was cut short."""
    store.write(NAME, [numbered(1)])
    before = store.audit(NAME)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    used = max(path.stat().st_size for path in folder.iterdir())
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (used + 4096, limits[1]))
        with pytest.raises(Unavailable) as refused:
            store.write(NAME, [stored(f"big-{number}", *(f"text {number} {part} " * 50 for part in range(20))) for number in range(50)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not refused.value.costs_attempt and refused.value.hint
    assert store.audit(NAME) == before
    assert store.write(NAME, [numbered(2)])[0].written


@pytest.mark.parametrize("name", ["../escape", "", "a/b", ".hidden", "x" * 300, "a\x00b"])
def test_a_collection_name_cannot_leave_the_folder(store: EmbeddedStore, name: str) -> None:
    with pytest.raises(BadRequest):
        store.ensure(CollectionSpec(name, DIMENSION))


def test_removed_text_is_not_left_in_the_file(folder: Path, store: EmbeddedStore) -> None:
    """What a person asked to delete is overwritten, its terms included once the index is compacted."""
    secret = "xyzzyplugh"
    store.write(NAME, [stored("secret", f"the word is {secret} here"), numbered(1)])
    store.delete(NAME, [stored("secret").document_id])
    store.expunge(NAME)
    store.close()
    assert all(secret.encode() not in path.read_bytes() for path in folder.iterdir())
    shutil.copytree(folder, folder.with_name("copy"))
    copy = EmbeddedStore(str(folder.with_name("copy")), writer=False)
    assert len(copy.search(NAME, lexical("paragraph"))) == 3
    copy.close()


def test_a_long_text_is_read_in_pieces(store: EmbeddedStore) -> None:
    text = "".join(f"{number} 林岑😀 " for number in range(30_000))
    document = stored("long", text[:200_000], text[200_000:])
    store.write(NAME, [document])
    whole = document.parsed.text
    for start, end in ((0, 10), (65_530, 65_545), (131_000, 200_100), (199_990, len(whole)), (len(whole), len(whole) + 5)):
        assert store.text(NAME, document.document_id, start, end) == whole[start:end]
    assert store.document(NAME, document.document_id) == document.parsed


def test_many_chunks_of_one_document_keep_their_vectors(store: EmbeddedStore) -> None:
    document = stored("many", *(f"chunk {number}" for number in range(150)))
    store.write(NAME, [stored("before", "x"), document, stored("after", "y")])
    hashes, vectors = store.vectors(NAME, document.document_id)
    assert len(hashes) == 150 and (vectors == document.vectors).all()
    for place in (0, 63, 64, 127, 128, 149):
        (hit,) = store.search(NAME, StoreQuery(vector=document.vectors[place], k=1, with_vectors=True))
        assert (hit.key, hit.ordinal) == ("many", place)
        assert hit.vector is not None and (hit.vector == document.vectors[place]).all()
