from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.contracts import ParsedDocument
from pipeline.errors import Malformed, PipelineError, TooLarge
from pipeline.parse import PARSERS, parse
from pipeline.parse.guard import Guard
from tests.contract.parser_vectors import docx, pdf, raw, real

HOSTILE = """
import ctypes, os, sys, time
from pipeline.contracts import ParsedDocument

def parse(raw, options):
    match raw.data.decode():
        case "loop":
            while True:
                pass
        case "sleep":
            time.sleep(600)
        case "memory":
            held = [bytearray(1 << 24) for _ in range(10_000)]
        case "native memory":
            os.write(2, b"memory allocation of 99 bytes failed")
            os.abort()
        case "segfault":
            ctypes.string_at(0)
        case "bug":
            raise KeyError("the secret of the document")
        case "exit":
            os._exit(3)
        case "killed":
            os.kill(os.getpid(), 9)
        case "chatty":
            sys.stderr.write("x" * 5_000_000)
            print("y" * 100_000)
    return ParsedDocument(raw.data.decode() + " " + str(os.getpid()), media_type="text/plain")
"""


@pytest.fixture
def parsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The registry with plain text read by a parser that does what the text says."""
    (tmp_path / "hostile_parser.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return {**PARSERS, "text/plain": "hostile_parser:parse"}


@pytest.fixture
def hostile(parsers: dict[str, str]) -> Iterator[Guard]:
    with Guard(timeout_s=60, memory_mb=512, parsers=parsers) as guard:
        yield guard


@pytest.fixture
def hasty(parsers: dict[str, str]) -> Iterator[Guard]:
    """For documents without an end."""
    with Guard(timeout_s=1.5, memory_mb=512, parsers=parsers) as guard:
        yield guard


def text(outcome: ParsedDocument | PipelineError) -> str:
    assert isinstance(outcome, ParsedDocument), outcome
    return outcome.text


def child_of(outcome: ParsedDocument | PipelineError) -> int:
    return int(text(outcome).rsplit(" ", 1)[1])


@pytest.mark.parametrize(
    ("says", "kind", "code"),
    [
        ("loop", Malformed, "parse_timeout"),
        ("sleep", Malformed, "parse_timeout"),
        ("memory", TooLarge, "parse_memory"),
        ("native memory", TooLarge, "parse_memory"),
        ("killed", TooLarge, "parse_memory"),
        ("segfault", Malformed, "parse_crashed"),
        ("bug", Malformed, "parse_crashed"),
        ("exit", Malformed, "parse_crashed"),
    ],
)
def test_a_hostile_document_costs_only_itself(hostile: Guard, hasty: Guard, says: str, kind: type[PipelineError], code: str) -> None:
    names = ["before", "also before", says, "after", "last"]
    guard = hasty if code == "parse_timeout" else hostile
    outcomes = guard.parse_many([raw(name.encode(), f"{name}.txt") for name in names])
    assert [text(outcomes[index]).rsplit(" ", 1)[0] for index in (0, 1, 3, 4)] == ["before", "also before", "after", "last"]
    failure = outcomes[2]
    assert isinstance(failure, kind) and failure.code == code
    assert failure.hint and says in failure.document
    assert "secret" not in failure.detail


def test_a_bug_names_its_place_without_quoting_the_document(hostile: Guard) -> None:
    (failure,) = hostile.parse_many([raw(b"bug", "a.txt")])
    assert isinstance(failure, Malformed)
    assert "KeyError" in failure.detail and "hostile_parser.py" in failure.detail and "secret" not in failure.detail


def test_a_parser_that_talks_a_lot_blocks_nothing(hostile: Guard) -> None:
    first, second = hostile.parse_many([raw(b"chatty", "a.txt"), raw(b"after", "b.txt")])
    assert text(first).startswith("chatty") and text(second).startswith("after")


def test_the_child_lives_over_batches_and_is_replaced_when_killed(hostile: Guard) -> None:
    first = child_of(hostile.parse_many([raw(b"a", "a.txt")])[0])
    assert child_of(hostile.parse_many([raw(b"b", "b.txt")])[0]) == first
    os.kill(first, signal.SIGKILL)
    assert child_of(hostile.parse_many([raw(b"c", "c.txt")])[0]) != first


def test_failures_of_a_document_come_back_as_they_were_raised() -> None:
    raws = [raw(b"", "a.md"), raw(b"# x\n\ny", "b.md"), raw(b"\x89PNG\r\n\x1a\n", "c.png"), raw(b"[", "d.json")]
    with Guard(timeout_s=20, memory_mb=512) as guard:
        outcomes = guard.parse_many(raws)
    assert [getattr(outcome, "code", "") for outcome in outcomes] == ["empty", "", "unsupported", "malformed"]
    assert isinstance(outcomes[1], ParsedDocument) and outcomes[1] == parse(raws[1])
    failure = outcomes[3]
    assert isinstance(failure, Malformed) and failure.hint and failure.document == raws[3].item.key


def test_many_documents_of_every_size_come_back_whole_and_in_order() -> None:
    raws = [raw(f"# {number}\n\n".encode() + b"word " * (number * number * 40), f"{number}.md") for number in range(90)]
    with Guard(timeout_s=20, memory_mb=512) as guard:
        assert guard.parse_many(raws) == [parse(one) for one in raws]


def test_native_formats_are_read_in_the_child_and_options_reach_it() -> None:
    raws = [raw(docx(), "a.docx"), raw(pdf(4), "b.pdf")]
    with Guard(timeout_s=30, memory_mb=1024) as guard:
        first, second = guard.parse_many(raws, {"pages": "2"})
    assert first == parse(raws[0])
    assert isinstance(second, ParsedDocument) and {s.page for s in second.sections} == {2}


def test_the_child_is_replaced_after_enough_native_documents(parsers: dict[str, str]) -> None:
    with Guard(timeout_s=30, memory_mb=1024, recycle_after=2, parsers=parsers) as guard:
        first = child_of(guard.parse_many([raw(b"a", "a.txt")])[0])
        guard.parse_many([raw(docx(), "a.docx"), raw(docx(), "b.docx")])
        assert child_of(guard.parse_many([raw(b"a", "a.txt")])[0]) != first


def test_a_zip_bomb_costs_only_itself() -> None:
    raws = [raw(b"# a", "a.md"), real("docx_zip_bomb_300mb.docx"), raw(b"# b", "b.md")]
    with Guard(timeout_s=20, memory_mb=512) as guard:
        first, bomb, last = guard.parse_many(raws)
    assert isinstance(first, ParsedDocument) and isinstance(last, ParsedDocument)
    assert isinstance(bomb, TooLarge) and bomb.code == "zip_bomb"


def test_threads_take_turns(hostile: Guard) -> None:
    found: dict[int, list[str]] = {}

    def work(number: int) -> None:
        found[number] = [text(o).split(" ")[0] for o in hostile.parse_many([raw(f"{number}-{i}".encode(), "a.txt") for i in range(20)])]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number}-{i}" for i in range(20)] for number in range(4)}


def test_the_child_outlives_the_thread_that_first_needed_it(hostile: Guard) -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(child_of(hostile.parse_many([raw(b"a", "a.txt")])[0])))
    thread.start()
    thread.join()
    assert child_of(hostile.parse_many([raw(b"b", "b.txt")])[0]) == found[0]


def _in_a_daemon(answers: multiprocessing.SimpleQueue[str], guard: Guard) -> None:
    answers.put(text(guard.parse_many([raw(b"# in a pool child", "a.md")])[0]))
    guard.close()


def test_it_works_inside_a_daemonic_pool_child_even_when_made_before_the_fork() -> None:
    fork = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[str] = fork.SimpleQueue()
    with Guard(timeout_s=20, memory_mb=512) as guard:
        guard.parse_many([raw(b"# before", "a.md")])
        process = fork.Process(target=_in_a_daemon, args=(answers, guard), daemon=True)
        process.start()
        process.join(60)
        assert answers.get() == "# in a pool child"
        assert text(guard.parse_many([raw(b"# after", "a.md")])[0]) == "# after"


def test_the_child_dies_with_its_worker_however_that_dies(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pipeline.parse.guard import Guard\nfrom tests.contract.parser_vectors import raw\n"
        "guard = Guard(timeout_s=60, memory_mb=512)\nguard.parse_many([raw(b'# x', 'a.md')])\n"
        "print(guard._child.process.pid, flush=True)\ntime.sleep(600)\n"
    )
    root = Path(__file__).resolve().parents[2]
    worker = subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    worker.kill()
    worker.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and "Z" not in _state(child):
        assert time.monotonic() < deadline, "the child is still there"
        os.sched_yield()
    worker.stdout.close()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"
