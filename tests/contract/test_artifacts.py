"""Packs, in a folder and in a real S3-compatible store alike."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.contracts import Stage
from pipeline.errors import Forbidden, Malformed, NotFound, Unauthorised, Unavailable
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
    yield open_artifacts(Settings(**server.settings("packs", uuid4().hex)))


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
    with pytest.raises(Malformed, match="parse/1-1.pack"):
        artifacts.read([ref])
    artifacts.remove([ref.pack])
    with pytest.raises(NotFound, match="parse/1-1.pack"):
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
    assert artifacts.read(moved) == kept
    assert {ref.pack for ref in moved} == {"parse/1-1-r1.pack"}
    assert b"secret" not in artifacts.shelf.get("parse/1-1-r1.pack", [(0, 10_000)])[0]


def test_many_writers_and_readers_at_once_never_see_half_a_pack(artifacts: Artifacts) -> None:
    def one(number: int) -> bytes:
        (ref,) = artifacts.write(f"parse/{number % 4}-1", [entry("a", b"%04d" % number * 5000, compress=False)])
        return artifacts.read([ref])[0]

    with ThreadPoolExecutor(8) as threads:
        for data in threads.map(one, range(40)):
            assert len(data) == 20_000 and len(set(data[i : i + 4] for i in range(0, 20_000, 4))) == 1


# ------------------------------------------------------------ what only a bucket can lack


def shelf(server: S3Server, **changed: str) -> Artifacts:
    server.bucket("packs")
    return open_artifacts(Settings(**{**server.settings("packs", "x"), "request_timeout_s": 2.0, **changed}))


def test_a_missing_bucket_and_wrong_credentials_each_have_their_own_word(s3_server: S3Server) -> None:
    with pytest.raises(NotFound, match="no bucket 'nowhere'"):
        shelf(s3_server, artifacts_url="s3://nowhere/x").shelf.check()
    with pytest.raises((Unauthorised, Forbidden)) as caught:
        shelf(s3_server, artifacts_secret_key="wrong" * 8).shelf.check()
    assert "DUJIANG_ARTIFACTS_SECRET_KEY" in caught.value.hint and "wrongwrong" not in str(caught.value)


def test_a_store_that_is_away_is_a_dependency_that_is_down() -> None:
    away = open_artifacts(
        Settings(artifacts_url="s3://b/x", artifacts_endpoint="http://127.0.0.1:9", artifacts_access_key="a", artifacts_secret_key="b")
    )
    with pytest.raises(Unavailable) as caught:
        away.write("parse/1-1", [entry("a", b"x")])
    assert not caught.value.costs_attempt
