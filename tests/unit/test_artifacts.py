"""Artifact packs: written whole or not at all, read back exactly, damage recognised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.contracts import Stage
from pipeline.errors import BadRequest, Malformed, NotFound, Unavailable
from pipeline.settings import Settings
from workers import vectors
from workers.artifacts import Artifacts, Entry, open_artifacts
from workers.artifacts.local import Folder


def entry(name: str, data: bytes, *, compress: bool = True) -> Entry:
    return Entry(name, 1, Stage.PARSE, f"key-{name}", data, compress)


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(Folder(f"{tmp_path}/artifacts"))


def test_entries_come_back_in_the_order_they_are_asked_for(artifacts: Artifacts) -> None:
    text, numbers = "水位 ".encode() * 1000, bytes(range(256)) * 16
    refs = artifacts.write("parse/1-1", [entry("a", text), entry("b", numbers, compress=False), entry("c", b"")])
    more = artifacts.write("parse/2-1", [entry("d", b"short")])
    assert artifacts.read([refs[1], more[0], refs[0], refs[2]]) == [numbers, b"short", text, b""]


def test_text_is_compressed_and_no_temporary_file_is_left(artifacts: Artifacts, tmp_path: Path) -> None:
    artifacts.write("parse/1-1", [entry("a", b"the same line again\n" * 5000)])
    (pack,) = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    assert pack.name == "1-1.pack" and pack.stat().st_size < 5000


def test_writing_the_same_batch_again_replaces_its_pack(artifacts: Artifacts) -> None:
    artifacts.write("parse/1-1", [entry("a", b"old")])
    (ref,) = artifacts.write("parse/1-1", [entry("a", b"new")])
    assert artifacts.read([ref]) == [b"new"]


def test_a_pack_that_is_gone_or_cut_or_damaged_is_named(artifacts: Artifacts, tmp_path: Path) -> None:
    (ref,) = artifacts.write("parse/1-1", [entry("a", b"0123456789" * 100)])
    path = tmp_path / "artifacts" / ref.pack
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(Malformed, match="1-1"):
        artifacts.read([ref])
    path.write_bytes(whole[:6] + b"\xff\xff" + whole[8:])
    with pytest.raises(Malformed, match="1-1"):
        artifacts.read([ref])
    path.unlink()
    with pytest.raises(NotFound, match="1-1"):
        artifacts.read([ref])


def test_a_folder_that_cannot_be_written_is_a_dependency_that_is_down(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable) as caught:
        Artifacts(Folder(f"{tmp_path}/file")).write("parse/1-1", [entry("a", b"x")])
    assert not caught.value.costs_attempt and "DUJIANG_ARTIFACTS_URL" in caught.value.hint


def test_an_address_that_is_no_folder_is_refused() -> None:
    with pytest.raises(BadRequest):
        open_artifacts(Settings(artifacts_url="ftp://host/folder"))


def test_vectors_come_back_with_the_hashes_of_their_texts() -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    hashes = [f"{index:032x}" for index in range(3)]
    found = vectors.load(vectors.dump("r1", hashes, numbers))
    assert (found.revision, list(found.hashes)) == ("r1", hashes)
    assert np.array_equal(found.vectors, numbers)
    with pytest.raises(Malformed):
        vectors.load(b"\x01\x02")
