"""Packs, in a folder and in a real S3-compatible store alike."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.contracts import Stage
from pipeline.errors import BadRequest, Malformed, NotFound, Rejected, Unauthorised, Unavailable, Unsupported
from pipeline.settings import Settings
from tests.servers.s3 import S3Server
from workers.artifacts import Artifacts, Entry, open_artifacts


@pytest.fixture(params=["folder", "s3"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Artifacts]:
    """An empty shelf."""
    if request.param == "folder":
        yield open_artifacts(Settings(artifacts_url=f"file://{tmp_path}/artifacts"))
        return
    server: S3Server = request.getfixturevalue("s3_server")
    server.bucket("packs")
    yield open_artifacts(replace(Settings(), **server.settings("packs", uuid4().hex)))


def entry(name: str, data: bytes, *, compress: bool = True) -> Entry:
    return Entry(name, 1, Stage.PARSE, f"key-{name}", data, compress)


def test_entries_come_back_as_they_were_and_in_the_order_asked_for(artifacts: Artifacts) -> None:
    text, numbers = "水位 ".encode() * 1000, bytes(range(256)) * 16
    refs = artifacts.write("parse/1-1", [entry("a", text), entry("b", numbers, compress=False), entry("c", b"")])
    more = artifacts.write("chunk/2-1", [entry("d", b"short")])
    assert artifacts.read([refs[1], more[0], refs[0], refs[2]]) == [numbers, b"short", text, b""]


def test_writing_a_pack_again_replaces_it(artifacts: Artifacts) -> None:
    artifacts.write("parse/1-1", [entry("a", b"old")])
    (ref,) = artifacts.write("parse/1-1", [entry("a", b"newer")])
    assert artifacts.read([ref]) == [b"newer"]
    assert [name for name, _ in artifacts.packs()] == ["parse/1-1.pack"]


def test_packs_are_listed_with_their_age_and_removed_twice_without_complaint(artifacts: Artifacts) -> None:
    assert list(artifacts.packs()) == []
    artifacts.write("parse/1-1", [entry("a", b"x")])
    artifacts.write("embed/2-1", [entry("a", b"y")])
    found = dict(artifacts.packs())
    assert set(found) == {"parse/1-1.pack", "embed/2-1.pack"}
    assert all(abs(time.time() - age) < 60 for age in found.values())
    for _ in range(2):
        artifacts.remove(["parse/1-1.pack", "embed/9-9.pack"])
    assert [name for name, _ in artifacts.packs()] == ["embed/2-1.pack"]


def test_a_pack_that_is_gone_or_shorter_than_known_is_named(artifacts: Artifacts) -> None:
    (ref,) = artifacts.write("parse/1-1", [entry("a", b"0123456789" * 100)])
    artifacts.shelf.put("parse/1-1.pack", [b"0"])
    with pytest.raises(Malformed, match="parse/1-1"):
        artifacts.read([ref])
    artifacts.remove([ref.pack])
    with pytest.raises(NotFound, match="parse/1-1"):
        artifacts.read([ref])


def test_a_damaged_entry_is_recognised(artifacts: Artifacts) -> None:
    (ref,) = artifacts.write("parse/1-1", [entry("a", b"the same line\n" * 1000)])
    artifacts.shelf.put(ref.pack, [b"\x01" + b"\x00" * (ref.length - 1)])
    with pytest.raises(Malformed, match="damaged"):
        artifacts.read([ref])


def test_entries_that_stay_move_into_a_new_pack_unopened(artifacts: Artifacts) -> None:
    kept = [b"stays " * 200, b"stays too"]
    refs = artifacts.write("parse/1-1", [entry("a", kept[0]), entry("gone", b"secret"), entry("b", kept[1])])
    moved = artifacts.rewrite("parse/1-1.pack", [refs[0], refs[2]], "parse/1-1-r1")
    assert list(moved) == [refs[0].start, refs[2].start]
    assert artifacts.read(list(moved.values())) == kept
    assert {ref.pack for ref in moved.values()} == {"parse/1-1-r1.pack"}
    assert b"secret" not in artifacts.shelf.get("parse/1-1-r1.pack", [(0, 10_000)])[0]


def test_many_writers_and_readers_at_once_never_see_half_a_pack(artifacts: Artifacts) -> None:
    def one(number: int) -> bytes:
        (ref,) = artifacts.write(f"parse/{number % 4}-1", [entry("a", b"%04d" % number * 5000, compress=False)])
        return artifacts.read([ref])[0]

    with ThreadPoolExecutor(8) as threads:
        for data in threads.map(one, range(40)):
            assert len(data) == 20_000 and len({data[i : i + 4] for i in range(0, 20_000, 4)}) == 1


def test_a_pack_of_many_megabytes_is_written_and_read_in_pieces(artifacts: Artifacts) -> None:
    large, small = random.Random(1).randbytes(12_000_000), b"after it"
    refs = artifacts.write("embed/1-1", [entry("a", large, compress=False), entry("b", small)])
    assert artifacts.read([refs[1]]) == [small]
    assert artifacts.read([refs[0]]) == [large]
    assert [name for name, _ in artifacts.packs()] == ["embed/1-1.pack"]


def test_what_is_lost_or_damaged_costs_its_neighbours_nothing(artifacts: Artifacts) -> None:
    refs = [artifacts.write(f"parse/{number}-1", [entry("a", b"%d" % number * 500), entry("b", b"second")]) for number in range(12)]
    artifacts.remove(["parse/3-1.pack"])
    artifacts.shelf.put("parse/5-1.pack", [b"\x01" + b"\x00" * (refs[5][0].length - 1)])
    outcomes = artifacts.each([ref for pair in refs for ref in pair])
    found = {position: type(outcome) for position, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)}
    assert found == {6: NotFound, 7: NotFound, 10: Malformed, 11: Malformed}
    assert all(outcomes[2 * number] == b"%d" % number * 500 for number in range(12) if number not in (3, 5))


def test_a_shelf_that_may_be_written_passes_its_check_and_keeps_nothing_of_it(artifacts: Artifacts) -> None:
    artifacts.shelf.check()
    assert list(artifacts.packs()) == []


# ------------------------------------------------------------ what only a bucket can be


def shelf(server: S3Server, **changed: str) -> Artifacts:
    server.bucket("packs")
    return open_artifacts(replace(Settings(request_timeout_s=2.0), **{**server.settings("packs", "x"), **changed}))


def test_a_missing_bucket_and_wrong_credentials_each_have_their_own_word(s3_server: S3Server) -> None:
    with pytest.raises(NotFound, match="no bucket 'nowhere'"):
        shelf(s3_server, artifacts_url="s3://nowhere/x").shelf.check()
    for changed in ({"artifacts_secret_key": "wrong" * 8}, {"artifacts_access_key": "wrong" * 4}):
        with pytest.raises(Unauthorised) as caught:
            shelf(s3_server, **changed).shelf.check()
        assert "DUJIANG_ARTIFACTS_SECRET_KEY" in caught.value.hint and "wrongwrong" not in str(caught.value)


def test_documents_wait_for_a_bucket_or_for_credentials_and_are_not_blamed(s3_server: S3Server) -> None:
    (ref,) = shelf(s3_server).write("parse/1-1", [entry("a", b"x")])
    for code, changed in {
        "no_bucket": {"artifacts_url": "s3://nowhere/x"},
        "artifacts_refused": {"artifacts_access_key": "wrong" * 4},
    }.items():
        kept = shelf(s3_server, **changed)
        for attempt in (lambda kept=kept: kept.write("parse/2-1", [entry("a", b"x")]), lambda kept=kept: kept.read([ref])):
            with pytest.raises(Unavailable) as caught:
                attempt()
            assert (caught.value.code, caught.value.costs_attempt) == (code, False)


def test_a_store_that_is_away_is_a_dependency_that_is_down() -> None:
    away = open_artifacts(
        Settings(artifacts_url="s3://b/x", artifacts_endpoint="http://127.0.0.1:9", artifacts_access_key="a", artifacts_secret_key="b")
    )
    with pytest.raises(Unavailable, match="does not answer") as caught:
        away.write("parse/1-1", [entry("a", b"x")])
    assert not caught.value.costs_attempt


def test_a_bucket_is_shared_by_prefixes_that_do_not_see_each_other(s3_server: S3Server) -> None:
    one, other, all_of_it = (shelf(s3_server, artifacts_url=f"s3://{s3_server.bucket('shared')}/{prefix}".rstrip("/")) for prefix in ("a", "ab", ""))
    (ref,) = one.write("parse/1-1", [entry("a", b"x")])
    assert list(other.packs()) == []
    with pytest.raises(NotFound):
        other.read([ref])
    assert [name for name, _ in all_of_it.packs()] == ["a/parse/1-1.pack"]


def test_more_packs_than_one_answer_holds_are_all_listed_and_removed(s3_server: S3Server) -> None:
    many = shelf(s3_server, artifacts_url="s3://packs/many")
    names = {f"parse/{number}-1.pack" for number in range(1005)}
    folder = s3_server.folder / "packs" / "many" / "parse"
    folder.mkdir(parents=True)
    for name in names:
        (folder.parent / name).write_bytes(b"x")
    assert {name for name, _ in many.packs()} == names
    many.remove(names)
    assert list(many.packs()) == []


def test_a_process_that_was_forked_too_late_is_told_instead_of_waiting_for_ever(s3_server: S3Server) -> None:
    kept = shelf(s3_server)
    (ref,) = kept.write("parse/1-1", [entry("a", b"x")])
    child = os.fork()
    if child == 0:
        # nothing of the test runner may run in here, and a wait without end shall fail the test
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            kept.read([ref])
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_half_of_the_credentials_and_a_client_that_is_not_installed_are_said_at_once(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="one half"):
        shelf(s3_server, artifacts_secret_key="")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Unsupported) as caught:
        shelf(s3_server)
    assert caught.value.hint == "pip install 'dujiang[s3]'"
