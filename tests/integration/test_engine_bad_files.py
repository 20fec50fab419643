"""Bad files: each is one failure that names document, stage, code and cure, and the rest of the folder is indexed."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.load.files import Reader, entry_of, walk
from tests.system import ROOT, System, docx, fill, markdown
from workers.views import FailureView, RunView

GIVEN = Path(os.environ.get("DUJIANG_TEST_DATA", ROOT.parent / "shared" / "data")) / "files"
GOOD = 3
MB = 1_000_000


def bomb_docx(path: Path) -> None:
    """300 MB of text in 300 kB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
        bundle.writestr("[Content_Types].xml", "<Types/>")
        with bundle.open("word/document.xml", "w") as part:
            part.write(b"<w:document xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'><w:body><w:p><w:r><w:t>")
            for _ in range(300):
                part.write(b"a" * MB)
            part.write(b"</w:t></w:r></w:p></w:body></w:document>")


def bomb_zip(path: Path) -> None:
    """An archive with one member that would fill the memory and one that is harmless."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
        with bundle.open("huge.txt", "w") as part:
            for _ in range(150):
                part.write(b"a" * MB)
        bundle.writestr("small.txt", "A small member of the archive is a document like any other.")


def write(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def link(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(path.parent.parent / target)


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


MADE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "empty.md": (write(b""), "parse", "empty"),
    "blank.txt": (write(b" \n\n\t \n"), "parse", "empty"),
    "truncated.docx": (write(half(docx(markdown(9)))), "parse", "truncated"),
    "bomb.docx": (bomb_docx, "parse", "zip_bomb"),
    "bomb.zip!/huge.txt": (bomb_zip, "load", "zip_bomb"),
    "unknown-charset.txt": (write("Station seven reports every ten minutes.\n".encode("cp500") * 20), "parse", "unknown_charset"),
    "binary.txt": (write(bytes(range(256)) * 64), "parse", "unsupported"),
    "broken.json": (write(b'{"a": [1, 2'), "parse", "malformed"),
    "picture.png": (write(b"\x89PNG\r\n\x1a\n" + bytes(100)), "load", "unsupported"),
    "leads-out.md": (link("outside.md"), "load", "symlink_outside"),
    "pipe.md": (os.mkfifo, "load", "unsupported"),
}
"""File → how it is made, the stage that stops it, the code it gets."""

TAKEN: dict[str, tuple[str, str]] = {
    "docx_password.docx": ("parse", "encrypted"),
    "docx_truncated.docx": ("parse", "truncated"),
    "pdf_encrypted_aes256.pdf": ("parse", "encrypted"),
    "pdf_password.pdf": ("parse", "encrypted"),
    "pdf_truncated_half.pdf": ("parse", "truncated"),
    "xlsx_password.xlsx": ("parse", "encrypted"),
}
"""Real files of the test data."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("bad")
    (base / "outside.md").write_text("# Outside\n\nNot part of the folder.\n")
    folder = fill(base / "docs", GOOD)
    for name, (make, _, _) in MADE.items():
        make(folder / name.partition("!")[0])
    for name in (*TAKEN, "wrong_extension_pdf.docx"):
        if (GIVEN / name).exists():
            shutil.copy(GIVEN / name, folder / name)
    (folder / "vanishes.md").write_text("# Soon gone\n\nIt is listed, and then it is gone.\n")
    (folder / "one-line.txt").write_bytes(b"the water level rises " * (50 * MB // 22))
    return folder


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    made = System(tmp_path_factory.mktemp("home"), chunker="windows:2000/0")
    yield made
    made.close()


@pytest.fixture(scope="module")
def run(system: System, folder: Path) -> RunView:
    """The whole folder through real workers, which begin when one of its files has vanished."""
    begun = system.ingest(folder)
    (folder / "vanishes.md").unlink()
    system.start()
    return system.finish(begun, 120.0)


def failure(run: RunView, name: str) -> FailureView:
    return next(found for found in run.failures if found.document.endswith(f"/{name}"))


def outcomes(system: System, run: RunView, outcome: str) -> dict[str, str]:
    return {item.document.rpartition("/")[2]: item.detail for item in system.platform.run_items(run.run_id, outcome=outcome).data}


@pytest.mark.parametrize("name", MADE)
def test_a_bad_file_says_what_is_wrong_with_it_where_and_what_helps(run: RunView, name: str) -> None:
    _, stage, code = MADE[name]
    found = failure(run, name)
    assert (found.stage, found.code) == (stage, code)
    assert found.detail and found.hint.endswith(".") and found.run_id == run.run_id


@pytest.mark.parametrize("name", TAKEN)
def test_a_real_file_that_cannot_be_read_says_why(run: RunView, name: str) -> None:
    if not (GIVEN / name).exists():
        pytest.skip(f"the test data folder has no {name}")
    found = failure(run, name)
    assert (found.stage, found.code) == TAKEN[name] and found.hint


def test_a_file_that_vanished_after_the_listing_is_skipped(system: System, run: RunView) -> None:
    assert list(outcomes(system, run, "skipped")) == ["vanishes.md"]
    assert "no longer exists" in outcomes(system, run, "skipped")["vanishes.md"]


def test_content_under_a_wrong_name_is_read_as_what_it_is_and_the_run_says_so(system: System, run: RunView) -> None:
    if not (GIVEN / "wrong_extension_pdf.docx").exists():
        pytest.skip("the test data folder has no wrong_extension_pdf.docx")
    assert "PDF" in outcomes(system, run, "indexed")["wrong_extension_pdf.docx"]


def test_everything_else_is_indexed_and_the_run_balances(system: System, run: RunView, folder: Path) -> None:
    indexed = outcomes(system, run, "indexed")
    assert {f"station-{number:04}.md" for number in range(GOOD)} | {"one-line.txt"} <= set(indexed)
    assert any(name.endswith("small.txt") for name in indexed), "the archive's other member"
    assert run.status == "done"
    assert run.discovered == run.indexed + run.skipped + run.failed
    assert system.audit().documents == run.indexed


def test_nothing_of_a_documents_content_is_in_a_message_or_a_log(system: System, run: RunView) -> None:
    secret = "reports every ten minutes"
    assert not any(secret in found.detail or secret in found.hint for found in run.failures)
    assert not any("the water level rises" in system.log(name) or secret in system.log(name) for name in ("compute", "network", "index"))


def test_a_bad_file_that_was_repaired_is_taken_with_the_next_run(system: System, run: RunView, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(b"")
    assert system.finish(system.ingest(path, collection="repaired")).failed == 1
    path.write_text("# Filled\n\nNow there is something to read.\n")
    assert system.finish(system.ingest(path, collection="repaired")).indexed == 1
    assert not system.platform.failures(collection="repaired").data


# ---------------------------------------------------------------- unreadable


def as_nobody(call: Callable[[], str]) -> str:
    """What `call` gives to a user who may read little; root may read everything."""
    if os.geteuid() != 0:
        return call()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setuid(65534)
            os.write(writer, call().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as answer:
        return answer.read()


def read_all(folder: Path) -> str:
    found: list[str] = []
    with Reader(max_bytes=MB) as reader:
        for entry in walk([str(folder)], max_bytes=MB):
            try:
                found.append(f"{len(reader.read(entry))} bytes")
            except PipelineError as error:
                found.append(error.code)
    return " ".join(found)


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A folder that everybody may enter."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o001 and path.name.startswith(("pytest", "popen", "test", "a_")):
            path.chmod(0o755)
    return tmp_path


def test_an_unreadable_file_is_one_failure_among_readable_ones(public: Path) -> None:
    (public / "a.md").write_text("good")
    (public / "b.md").write_text("secret")
    read_all(public)
    (public / "b.md").chmod(0)
    assert as_nobody(lambda: read_all(public)) == "4 bytes unreadable"


def test_a_file_that_became_unreadable_after_the_listing_says_so(public: Path) -> None:
    path = public / "a.md"
    path.write_text("good")
    (entry,) = walk([str(public)], max_bytes=MB)
    again = entry_of(entry.item)
    path.chmod(0)

    def read() -> str:
        with Reader(max_bytes=MB) as reader:
            try:
                return str(len(reader.read(again)))
            except PipelineError as error:
                return error.code

    assert as_nobody(read) == "unreadable"
