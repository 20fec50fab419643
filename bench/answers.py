"""What answers are worth and what they take: quotes, cached answers over HTTP, many askers at once, search in a large collection.

    python -m bench.answers [--data DATASET_DIR] [--parts citations,cached,askers,hybrid] [--questions 500] [--chunks 100000]
                            [--embedder local] [--elasticsearch-url elasticsearch+http://127.0.0.1:9200]

* citations: questions over a corpus on the embedded store, read by the extractive reader and by a stub model; every quote is compared
  with the document at its offsets and with what the reader was sent.
* cached: one cached answer asked again over HTTP, on a kept connection.
* askers: 200 connections that ask at once, each its own questions; errors, how evenly they are served, and the server's memory.
* hybrid: search in a collection of made-up text, on the embedded store, and on Elasticsearch where an address is given.

DATASET_DIR holds a corpus and questions as for `bench.retrieval`; without one, pages of made-up prose are asked for their own sentences.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.corpus import WORDS_EN, WORDS_ZH, files, make
from bench.retrieval import BATCH, Prepared, build, cases
from pipeline import answer, chunk, embed
from pipeline.cite import verbatim
from pipeline.contracts import Answer, Chunk, CollectionSpec, IndexedDocument, Mode, ParsedDocument, Question, Section
from pipeline.identity import document_id, index_name
from pipeline.index import index
from pipeline.llm import create as create_llm
from pipeline.protocols import Store
from pipeline.retrieve import Target, search
from pipeline.settings import Settings, child_environment
from pipeline.stores import open_store
from pipeline.text import terms_many
from tests.simulators.model_server import ModelServer
from tests.system import System, until

PAGES = 400
DIMENSION = 256
GOALS = {"cached": (1.0, 5.0), "hybrid": (20.0, 50.0)}
"""p50 and p99 in milliseconds."""


def main() -> None:
    given = arguments()
    parts = {"citations": citations, "cached": cached, "askers": askers, "hybrid": hybrid}
    for name in given.parts.split(","):
        parts[name](given)


def milliseconds(label: str, seconds: Sequence[float], goal: tuple[float, float] | None = None) -> None:
    p50, p99 = np.percentile(np.array(seconds), [50, 99]) * 1e3
    aim = f" (goal {goal[0]:g} / {goal[1]:g})" if goal else ""
    print(f"{label}: p50 {p50:.2f} ms, p99 {p99:.2f} ms{aim}, {len(seconds)} times", flush=True)


# ---------------------------------------------------------------- citations


@dataclass
class Quotes:
    """What the answers of one reader held."""

    answers: int = 0
    refused: int = 0
    cited: int = 0
    citations: int = 0
    verbatim: int = 0
    supported: int = 0
    grounding: list[float] = field(default_factory=list[float])
    seconds: list[float] = field(default_factory=list[float])

    def add(self, found: Answer, store: Store, name: str, seconds: float) -> None:
        """Count one answer, its quotes compared with the store's documents and with what was sent."""
        self.answers += 1
        self.seconds.append(seconds)
        if found.refused:
            self.refused += 1
            return
        self.cited += bool(found.citations)
        self.grounding.append(found.grounding.score)
        passages = {passage.marker: passage for passage in found.evidence}
        for one in found.citations:
            self.citations += 1
            held = store.text(name, one.document_id, one.start_char, one.end_char)
            self.verbatim += held == one.quote and verbatim(one, passages[one.marker])
            self.supported += one.supported

    def told(self, label: str) -> None:
        given = self.answers - self.refused
        share = f"{self.verbatim}/{self.citations}" if self.citations else "none"
        mean = np.mean(self.grounding) if self.grounding else 0.0
        print(
            f"{label}: {self.answers} questions, {self.refused} refused, {self.cited}/{given} answers cited, quotes verbatim {share} (goal all), "
            f"{self.supported} supported, mean grounding {mean:.3f}",
            flush=True,
        )
        milliseconds(f"{label}, CPU of a whole question", self.seconds)


def citations(given: argparse.Namespace) -> None:
    """Ask questions in-process; two readers over the same packs."""
    with tempfile.TemporaryDirectory(prefix="dujiang-answers-") as scratch, ModelServer() as model:
        store = open_store(f"sqlite:///{scratch}/store", writer=True)
        embedder = Prepared(embed.create(Settings(embedder=given.embedder)))
        name = index_name("bench", "answers", 1)
        if given.data:
            build(given.data, store, name, embedder, "sections", vectors=True)
            asked = [case.text for case in cases(given.data, given.questions)]
        else:
            pages = made_up(make(Path(scratch) / "corpus", PAGES))
            asked = questions(pages, given.questions)
            written(store, name, embedder, pages)
        embedder.learn(asked)
        target = Target("answers", name, 1, store, embedder)
        readers = {"extractive": create_llm(Settings()), "stub model": create_llm(Settings(llm="openai:stub", llm_base_url=model.url))}
        found = {label: Quotes() for label in readers}
        for text in asked:
            started = time.process_time()
            pack = answer.gather(Question(text, ("answers",)), [target])
            gathered = time.process_time() - started
            for label, reader in readers.items():
                started = time.process_time()
                got = answer.read(pack, reader)
                found[label].add(got, store, name, gathered + time.process_time() - started)
        for label, quotes in found.items():
            quotes.told(label)
        store.close()


def made_up(corpus: Path) -> list[tuple[str, str]]:
    """(key, text) of the corpus."""
    return [(file.key, file.path.read_text(encoding="utf-8")) for file in files(corpus, PAGES, changed=False)]


def questions(pages: Sequence[tuple[str, str]], number: int) -> list[str]:
    """Sentences of the pages, cut at both ends."""
    rng = random.Random(11)
    found: list[str] = []
    while len(found) < number:
        lines = [line for line in rng.choice(pages)[1].splitlines() if line and not line.startswith("#")]
        sentence = rng.choice(lines).split("。")[0].split(". ")[0]
        found.append(f"{sentence[2:-2]}?")
    return found


def written(store: Store, name: str, embedder: Prepared, pages: Sequence[tuple[str, str]]) -> None:
    """Chunk, embed and index pages."""
    chunker = chunk.create("sections")
    store.ensure(CollectionSpec(name, embedder.profile.dimension or DIMENSION))
    for start in range(0, len(pages), BATCH):
        documents: list[IndexedDocument] = []
        for key, text in pages[start : start + BATCH]:
            parsed = ParsedDocument(text, (Section(0, len(text)),), title=key, media_type="text/plain")
            identity = document_id("bench", "answers", key)
            pieces = chunk.chunk(parsed, identity, chunker)
            documents.append(IndexedDocument(identity, 1, key, key, "", parsed, pieces, embedder.encode([one.searched for one in pieces]).vectors))
        index(store, name, documents)


# ---------------------------------------------------------------- over HTTP


class Served:
    """A system with a server on a free port and pages in it. Use it in a `with` block."""

    def __init__(self, folder: Path, embedder: str) -> None:
        self._system = System(folder / "home", embedder=embedder)
        self._corpus = make(folder / "corpus", PAGES)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    def __enter__(self) -> Served:
        self._system.start()
        self._system.finish(self._system.ingest(self._corpus / "docs"), 3600.0)
        environment = child_environment(self._system.settings) | {"DUJIANG_PORT": str(self.port), "DUJIANG_LOG_LEVEL": "warning"}
        self._process = subprocess.Popen([sys.executable, "-m", "api.serve"], env=environment)
        until(self._answers, 60.0, "the server answers")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._system.close(check=False)

    @property
    def pages(self) -> list[tuple[str, str]]:
        return made_up(self._corpus)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def figure(self, name: str) -> float:
        """Of /proc/PID/status in MB, or the CPU seconds so far under the name ``cpu``."""
        if name == "cpu":
            parts = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            return (int(parts[11]) + int(parts[12])) / 100
        lines = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> tuple[int, bytes]:
        """Status and body of one question on a kept connection."""
        body = json.dumps({"query": text, "collections": ["docs"]}).encode()
        head = f"POST /api/v1/ask HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
        return int(lines[0].split()[1]), await reader.readexactly(length)


def cached(given: argparse.Namespace) -> None:
    """The same question again and again."""
    with tempfile.TemporaryDirectory(prefix="dujiang-answers-") as folder, Served(Path(folder), given.embedder) as served:
        text = questions(served.pages, 1)[0]

        async def drive() -> list[float]:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            for _ in range(50):
                await served.ask(reader, writer, text)
            seconds: list[float] = []
            for _ in range(given.times):
                started = time.perf_counter()
                status, body = await served.ask(reader, writer, text)
                seconds.append(time.perf_counter() - started)
                assert status == 200 and json.loads(body)["cache"] == "hit"
            writer.close()
            return seconds

        spent = served.figure("cpu")
        seconds = asyncio.run(drive())
        milliseconds("cached answer over HTTP", seconds, GOALS["cached"])
        print(f"cached answer over HTTP: {(served.figure('cpu') - spent) / (given.times + 50) * 1e3:.2f} ms of the server's CPU each", flush=True)


def askers(given: argparse.Namespace) -> None:
    """Many connections at once, each with questions that nobody asked before."""
    with tempfile.TemporaryDirectory(prefix="dujiang-answers-") as folder, Served(Path(folder), given.embedder) as served:
        asked = questions(served.pages, given.askers * given.each)

        async def one(texts: Sequence[str]) -> tuple[list[float], int]:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            seconds: list[float] = []
            failed = 0
            for text in texts:
                started = time.perf_counter()
                status, _ = await served.ask(reader, writer, text)
                seconds.append(time.perf_counter() - started)
                failed += status != 200
            writer.close()
            return seconds, failed

        async def drive() -> list[tuple[list[float], int] | BaseException]:
            every = [asked[number :: given.askers] for number in range(given.askers)]
            return await asyncio.gather(*(one(texts) for texts in every), return_exceptions=True)

        before, started = served.figure("VmRSS"), time.perf_counter()
        found = asyncio.run(drive())
        took = time.perf_counter() - started
        broken = sum(isinstance(item, BaseException) for item in found)
        fine = [item for item in found if not isinstance(item, BaseException)]
        seconds = [value for item in fine for value in item[0]]
        means = [float(np.mean(item[0])) for item in fine]
        milliseconds(f"{given.askers} askers at once", seconds)
        p50, p99 = np.percentile(np.array(seconds), [50, 99])
        print(
            f"{given.askers} askers at once: {broken + sum(item[1] for item in fine)} errors, {len(seconds) / took:.0f} answers/s, "
            f"p99/p50 {p99 / p50:.2f}, slowest asker's mean / fastest's {max(means) / min(means):.2f}, "
            f"memory {before:.0f} -> {served.figure('VmHWM'):.0f} MB",
            flush=True,
        )


# ---------------------------------------------------------------- a large collection


def hybrid(given: argparse.Namespace) -> None:
    """Made-up chunks with random vectors; questions of their words."""
    with tempfile.TemporaryDirectory(prefix="dujiang-answers-") as scratch:
        urls = {"embedded": f"sqlite:///{scratch}/store", **({"elasticsearch": given.elasticsearch_url} if given.elasticsearch_url else {})}
        embedder = Prepared(embed.create(Settings(embedder=given.embedder)))
        asked = list(spoken(random.Random(3), 200))
        embedder.learn(asked)
        dimension = embedder.encode_queries([asked[0]]).vectors.shape[1]
        for label, url in urls.items():
            store = open_store(url, writer=True)
            name = index_name("bench", "large", 1)
            store.drop(name)
            store.ensure(CollectionSpec(name, dimension))
            started = time.perf_counter()
            filled(store, name, given.chunks, dimension)
            print(f"{label}: {given.chunks} chunks of {dimension} dimensions written in {time.perf_counter() - started:.0f} s", flush=True)
            target = Target("large", name, 1, store, embedder)
            for mode in (Mode.HYBRID, Mode.PARTICIPLE, Mode.SEMANTIC):
                walls, spent = timed(target, asked, mode)
                milliseconds(f"{label}, {mode}, wall", walls, GOALS["hybrid"] if mode is Mode.HYBRID else None)
                milliseconds(f"{label}, {mode}, CPU of this process", spent)
            store.drop(name)
            store.close()


def timed(target: Target, asked: Sequence[str], mode: Mode) -> tuple[list[float], list[float]]:
    """(wall, CPU) seconds of each question, after a few that warm up."""
    walls: list[float] = []
    spent: list[float] = []
    for text in [*asked[:10], *asked]:
        wall, cpu = time.perf_counter(), time.process_time()
        search(Question(text, ("large",), mode=mode), [target])
        walls.append(time.perf_counter() - wall)
        spent.append(time.process_time() - cpu)
    return walls[10:], spent[10:]


def spoken(rng: random.Random, number: int) -> Iterator[str]:
    """Questions, half English, half Chinese."""
    for place in range(number):
        yield (
            "".join(rng.sample(WORDS_ZH, 4)) + f"{rng.randrange(5000)}？"
            if place % 2
            else " ".join(rng.sample(WORDS_EN, 5)) + f" {rng.randrange(5000)}?"
        )


def filled(store: Store, name: str, number: int, dimension: int) -> None:
    """Write chunks of about 80 words, twenty to a document; numbers among the words make them differ."""
    rng, vectors = random.Random(5), np.random.default_rng(5)
    for start in range(0, number, 20 * BATCH):
        documents: list[IndexedDocument] = []
        for place in range(start, min(number, start + 20 * BATCH), 20):
            texts = [prose(rng, place + one) for one in range(min(20, number - place))]
            identity, whole, at = document_id("bench", "large", str(place)), "\n".join(texts), 0
            pieces: list[Chunk] = []
            for ordinal, (text, (words, grams)) in enumerate(zip(texts, terms_many(texts), strict=True)):
                pieces.append(Chunk(f"{identity}-{ordinal}", ordinal, at, at + len(text), text, 120, words=words, grams=grams))
                at += len(text) + 1
            rows = vectors.standard_normal((len(texts), dimension), dtype=np.float32)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            parsed = ParsedDocument(whole, (Section(0, len(whole)),), title=f"Document {place}", media_type="text/plain")
            documents.append(IndexedDocument(identity, 1, str(place), f"Document {place}", "", parsed, tuple(pieces), rows))
        index(store, name, documents)


def prose(rng: random.Random, place: int) -> str:
    if place % 2:
        return "。".join("".join(rng.choices(WORDS_ZH, k=12)) + str(rng.randrange(5000)) for _ in range(5)) + "。"
    return ". ".join(" ".join(rng.choices(WORDS_EN, k=15)) + f" {rng.randrange(5000)}" for _ in range(5)) + "."


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--parts", default="citations,cached,askers,hybrid")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--times", type=int, default=2000, help="cached answers")
    parser.add_argument("--askers", type=int, default=200)
    parser.add_argument("--each", type=int, default=3, help="questions of one asker")
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--embedder", default="local")
    parser.add_argument("--elasticsearch-url", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
