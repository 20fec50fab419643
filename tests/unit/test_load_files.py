from __future__ import annotations

import json
import os
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import Forbidden, Gone, Malformed, NotFound, PipelineError, TooLarge, Unsupported
from pipeline.load.files import FileEntry, Files, Reader, entry_of, load, read, walk
from tests.contract.parser_vectors import DATA

MOST = 10_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "docs"
    for name in ("b.md", "a.txt", "sub/c.md", "sub/deep/d.md", ".hidden.md", ".git/config", "sub/.cache/x.md", "x.pyc", "~$a.docx"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def names(entries: list[FileEntry], root: Path) -> list[str]:
    return [entry.item.key.removeprefix(f"file://{root}/") for entry in entries]


def found(*paths: Path | str, most: int = MOST) -> list[FileEntry]:
    return list(walk([str(path) for path in paths], max_bytes=most))


def problem(entry: FileEntry) -> PipelineError:
    assert entry.problem is not None
    return entry.problem


def test_a_folder_is_walked_in_a_fixed_order_without_hidden_files(folder: Path) -> None:
    entries = found(folder)
    assert names(entries, folder) == ["a.txt", "b.md", "sub/c.md", "sub/deep/d.md"]
    assert all(entry.problem is None and entry.size and entry.mtime_ns and entry.item.revision for entry in entries)
    assert [read(entry, max_bytes=MOST).decode() for entry in entries] == names(entries, folder)


def test_a_hidden_file_named_directly_is_read(folder: Path) -> None:
    assert names(found(folder / ".hidden.md"), folder) == [".hidden.md"]


def test_each_document_comes_once_however_it_is_named(folder: Path) -> None:
    assert names(found(folder / "b.md", folder, folder / "sub", str(folder / "*.md")), folder) == ["b.md", "a.txt", "sub/c.md", "sub/deep/d.md"]


def test_globs_are_expanded(folder: Path) -> None:
    assert names(found(str(folder / "**/*.md")), folder) == ["b.md", "sub/c.md", "sub/deep/d.md"]


def test_what_does_not_exist_is_one_failure_and_the_rest_is_walked(folder: Path) -> None:
    missing, nothing, good = found(folder / "nope.md", str(folder / "*.nope"), folder / "a.txt")
    assert isinstance(problem(missing), NotFound) and isinstance(problem(nothing), NotFound) and good.problem is None


def test_files_nobody_reads_are_listed_with_a_reason(folder: Path) -> None:
    (folder / "photo.PNG").write_bytes(b"x")
    (folder / "slides.pptx").write_bytes(b"x")
    problems = [entry for entry in found(folder) if entry.problem]
    assert names(problems, folder) == ["photo.PNG", "slides.pptx"]
    assert all(isinstance(entry.problem, Unsupported) and entry.problem.document == entry.item.key for entry in problems)


def test_junk_is_refused_only_when_named(folder: Path) -> None:
    (junk,) = found(folder / "x.pyc")
    assert isinstance(junk.problem, Unsupported)


def test_a_file_over_the_limit_names_the_setting(folder: Path) -> None:
    (folder / "big.txt").write_bytes(b"x" * 200)
    big = next(entry for entry in found(folder, most=100) if entry.problem)
    assert isinstance(big.problem, TooLarge) and "DUJIANG_MAX_FILE_MB" in big.problem.hint


# ---------------------------------------------------------------- links


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("s")
    (folder / "leak.md").symlink_to(tmp_path / "secret.md")
    (folder / "leakdir").symlink_to(tmp_path)
    entries = {entry.item.path: entry for entry in found(folder) if entry.problem}
    assert {Path(path).name for path in entries} == {"leak.md", "leakdir"}
    assert all(isinstance(entry.problem, Forbidden) and entry.problem.code == "symlink_outside" for entry in entries.values())


def test_loops_and_links_inside_the_folder_give_nothing_twice(folder: Path) -> None:
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "again.md").symlink_to(folder / "b.md")
    (folder / "self").symlink_to("self")
    entries = found(folder)
    assert names([entry for entry in entries if not entry.problem], folder) == ["a.txt", "b.md", "sub/c.md", "sub/deep/d.md"]


def test_a_mounted_volume_of_links_into_a_hidden_folder_is_read_under_stable_keys(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "volume"
    real = root / "..2026_11_30"
    (real / "sub").mkdir(parents=True)
    (real / "a.md").write_text("a")
    (real / "sub" / "b.md").write_text("b")
    (root / "..data").symlink_to(real.name)
    (root / "a.md").symlink_to("..data/a.md")
    (root / "sub").symlink_to("..data/sub")
    entries = found(root)
    assert names(entries, root) == ["a.md", "sub/b.md"]
    assert [read(entry, max_bytes=MOST) for entry in entries] == [b"a", b"b"]


def test_a_link_to_nothing_is_gone(folder: Path) -> None:
    (folder / "dead.md").symlink_to("nowhere.md")
    assert isinstance(problem(next(e for e in found(folder) if e.problem)), Gone)


def test_a_file_replaced_by_a_link_after_the_listing_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("s")
    (entry,) = found(folder / "a.txt")
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to(tmp_path / "secret.md")
    with pytest.raises(Forbidden):
        read(entry, max_bytes=MOST)


# ---------------------------------------------------------------- reading


def test_a_file_that_vanished_is_gone(folder: Path) -> None:
    (entry,) = found(folder / "a.txt")
    (folder / "a.txt").unlink()
    with pytest.raises(Gone):
        read(entry, max_bytes=MOST)


def test_a_file_that_grew_over_the_limit_is_refused(folder: Path) -> None:
    (entry,) = found(folder / "a.txt")
    (folder / "a.txt").write_bytes(b"x" * 2000)
    with pytest.raises(TooLarge):
        read(entry, max_bytes=1000)


def test_a_pipe_never_blocks(folder: Path) -> None:
    os.mkfifo(folder / "pipe.md")
    (refused,) = [entry for entry in found(folder) if entry.problem]
    assert isinstance(refused.problem, Unsupported)
    (entry,) = found(folder / "a.txt")
    (folder / "a.txt").unlink()
    os.mkfifo(folder / "a.txt")
    with pytest.raises(Unsupported):
        read(entry, max_bytes=MOST)


@pytest.fixture
def nobody() -> Iterator[None]:
    """Root may read everything, so that these tests run as somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_unreadable_files_and_folders_are_single_failures(folder: Path, request: pytest.FixtureRequest) -> None:
    for above in (folder, *folder.parents):
        if above != Path("/") and above.stat().st_uid == os.getuid():
            above.chmod(above.stat().st_mode | 0o055)
    (folder / "b.md").chmod(0)
    (folder / "sub").chmod(0)
    try:
        request.getfixturevalue("nobody")
        entries = {Path(entry.item.path).name: entry.problem for entry in found(folder)}
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        (folder / "sub").chmod(0o755)
    assert entries["a.txt"] is None
    for name in ("b.md", "sub"):
        refused = entries[name]
        assert isinstance(refused, Forbidden) and refused.code == "unreadable"


def test_names_that_are_no_unicode_are_refused_by_name(folder: Path) -> None:
    with open(os.fsencode(folder) + b"/\xff\xfe.md", "w"):
        pass
    (bad,) = [entry for entry in found(folder) if entry.problem]
    assert isinstance(bad.problem, Malformed) and bad.problem.code == "bad_name"
    bad.item.key.encode()


def test_an_item_that_was_stored_can_be_read_without_its_entry(folder: Path) -> None:
    (entry,) = found(folder / "a.txt")
    assert read(entry_of(entry.item), max_bytes=MOST) == b"a.txt"
    document = load(entry.item, b"a.txt")
    assert document.item is entry.item and len(document.sha256) == 64


def test_the_connector_lists_everything_and_raises_the_problem_on_fetch(folder: Path) -> None:
    (folder / "p.png").write_bytes(b"x")
    connector = Files([str(folder)], max_bytes=MOST)
    items = list(connector.scan())
    assert connector.fetch(items[0]).data == b"a.txt"
    with pytest.raises(Unsupported):
        connector.fetch(next(item for item in items if item.path.endswith("p.png")))


# ---------------------------------------------------------------- archives


def archive(path: Path, **members: str | bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in members.items():
            out.writestr(name, content)
    return path


def test_members_of_an_archive_are_documents(tmp_path: Path) -> None:
    path = archive(tmp_path.resolve() / "a.zip", **{"d/b.md": "b", "a.md": "a", ".hid/x.md": "x", "__MACOSX/a": "x", "i.png": "x", "in.zip": "x"})
    entries = found(tmp_path)
    assert [entry.item.key for entry in entries if not entry.problem] == [f"file://{path}!/a.md", f"file://{path}!/d/b.md"]
    assert sorted(problem(entry).code for entry in entries if entry.problem) == ["unsupported", "unsupported"]
    with Reader(max_bytes=MOST) as reader:
        assert [reader.read(entry_of(entry.item)) for entry in entries if not entry.problem] == [b"a", b"b"]


def test_old_archives_keep_their_chinese_names() -> None:
    path = DATA / "files" / "zip_gbk_names.zip"
    if not path.is_file():
        pytest.skip(f"no test data: {path} (set DUJIANG_TEST_DATA)")
    (entry,) = found(path)
    assert "集团邮件审计系统2021年自动巡检需求文档" in entry.item.key


def test_a_bomb_in_an_archive_is_one_failure(tmp_path: Path) -> None:
    archive(tmp_path / "a.zip", **{"bomb.txt": b"0" * (30 << 20), "ok.md": "ok"})
    bomb, good = found(tmp_path, most=100 << 20)
    assert problem(bomb).code == "zip_bomb" and good.problem is None


def test_a_member_that_lies_about_its_size_is_stopped(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", **{"a.txt": random.Random(1).randbytes(5000)})
    (entry,) = found(path)
    with pytest.raises(TooLarge):
        read(entry, max_bytes=1000)


def test_a_damaged_archive_is_one_failure(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", **{"a.md": "a" * 500})
    path.write_bytes(path.read_bytes()[:60])
    (tmp_path / "b.md").write_text("b")
    bad, good = found(tmp_path)
    assert isinstance(bad.problem, Malformed) and good.problem is None


def test_a_member_that_is_no_longer_there_is_gone(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", **{"a.md": "a", "b.md": "b"})
    entry = found(path)[1]
    archive(path, **{"a.md": "a"})
    with pytest.raises(Gone):
        read(entry, max_bytes=MOST)


# ---------------------------------------------------------------- manifests


def manifest(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows))
    return path


def test_a_manifest_gives_texts_and_files_with_their_metadata(folder: Path) -> None:
    path = manifest(
        folder / "list.jsonl",
        {"text": "林岑", "key": "k1", "title": "T", "url": "http://x", "metadata": {"year": 2024, "tags": ["a"]}},
        {"path": "sub/c.md", "metadata": {"team": "x"}},
        {"text": "no key"},
    )
    entries = found(folder)
    assert [entry.item.key for entry in entries][:3] == ["k1", f"file://{folder}/sub/c.md", f"file://{path}#3"]
    assert names(entries, folder)[3:] == ["a.txt", "b.md", "sub/deep/d.md"]
    first, second = entries[0].item, entries[1].item
    assert (first.title, first.url, first.metadata) == ("T", "http://x", {"year": 2024, "tags": ["a"]})
    assert second.metadata == {"team": "x"}
    assert [read(entry_of(entry.item), max_bytes=MOST).decode() for entry in entries[:3]] == ["林岑", "sub/c.md", "no key"]


def test_bad_lines_of_a_manifest_are_single_failures(folder: Path) -> None:
    path = manifest(
        folder / "list.jsonl", {"text": "ok"}, "{", {"text": "x", "path": "y"}, {"path": "nope.md"}, {"text": "x", "metadata": {"a": {"b": 1}}}
    )
    codes = [entry.problem and entry.problem.code for entry in found(path)]
    assert codes == [None, "bad_manifest", "bad_manifest", "not_found", "bad_manifest"]


def test_a_manifest_met_in_a_folder_cannot_name_files_outside_of_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("s")
    path = manifest(folder / "list.jsonl", {"path": "../secret.md"})
    assert problem(found(folder)[0]).code == "path_outside"
    assert found(path)[0].problem is None


def test_json_lines_that_are_no_manifest_are_one_document(folder: Path) -> None:
    manifest(folder / "chat.jsonl", {"speaker": "Lin", "text": "hi"})
    assert names(found(folder), folder)[0] == "chat.jsonl"


def test_a_manifest_that_changed_meanwhile_is_gone(folder: Path) -> None:
    path = manifest(folder / "list.jsonl", {"text": "one"}, {"text": "two"})
    entry = found(path)[1]
    manifest(path, {"text": "something longer"})
    with pytest.raises(Gone):
        read(entry, max_bytes=MOST)


def test_a_walk_is_lazy(folder: Path) -> None:
    steps = walk([str(folder)], max_bytes=MOST)
    next(steps)
    (folder / "sub" / "new.md").write_text("new")
    assert "sub/new.md" in names(list(steps), folder)
