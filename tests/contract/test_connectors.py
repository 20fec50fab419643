"""What the engine asks of every connector, and what it bears from one that keeps no promise.

The first part reads the registry: a connector that is registered is tested. One that needs a server brings a fixture named ``source_KIND``,
which starts its simulator and gives the options of a source that holds at least three items.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.contracts import RawDocument, SourceItem
from pipeline.contracts.sources import Listed, Mark, ScanEvent, ScopeDone, ScopeFailed, SourceCheck, SourceSpec
from pipeline.errors import Cancelled, Gone, PipelineError
from pipeline.identity import content_hash
from pipeline.load import connectors
from pipeline.protocols import Connector
from tests.simulators import feishu
from tests.simulators.feishu_blocks import text
from tests.simulators.shelf import filled
from tests.simulators.web import Web
from tests.simulators.yuque import TOKEN, Yuque
from tests.sourced import Bench, plugged
from tests.system import fill

KINDS = [name for name, kind in connectors.KINDS.items() if find_spec(kind.factory.partition(":")[0])] + ["shelf"]


class Around:
    """Surroundings that never wait, and can be told to stop."""

    def __init__(self) -> None:
        self.stopped = False
        self.time = 1_800_000_000.0
        self._values: dict[str, str] = {}
        self._notes: dict[str, str] = {}

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.check()
        self.time += seconds

    def check(self) -> None:
        if self.stopped:
            raise Cancelled("stopped")

    @contextmanager
    def acquire(self, route: str, *, rate: float, burst: float, slots: int = 0) -> Generator[None]:
        self.check()
        yield

    def blocked(self, route: str, seconds: float) -> None:
        self.time += seconds

    def shared(self, name: str, make: Callable[[], tuple[str, float]], *, stale: str = "") -> str:
        if self._values.get(name, stale) == stale:
            self._values[name] = make()[0]
        return self._values[name]

    def remembered(self) -> Iterator[tuple[str, str]]:
        return iter(list(self._notes.items()))

    def remember(self, notes: Mapping[str, str | None]) -> None:
        self._notes = {name: text for name, text in {**self._notes, **notes}.items() if text is not None}


@pytest.fixture
def source_folder(tmp_path: Path) -> Mapping[str, str]:
    return {"path": str(fill(tmp_path / "pages", 5))}


@pytest.fixture
def source_shelf(tmp_path: Path) -> Mapping[str, str]:
    shelf = filled(tmp_path / "shelf.json", *"abcdefgh")
    with shelf.edit():
        shelf.marks = 3
    return {"path": str(shelf.path)}


@pytest.fixture
def source_yuque() -> Iterator[Mapping[str, str]]:
    with Yuque() as simulator:
        simulator.book(1, "Stations")
        for number in range(1, 6):
            simulator.write(1, number, f"Page {number}", f"Text of page {number}.")
        yield {"base_url": simulator.url, "token": TOKEN}


@pytest.fixture
def source_feishu() -> Iterator[Mapping[str, str]]:
    with feishu.Feishu() as simulator:
        library = simulator.library
        folder = library.folder("Stations")
        for number in range(1, 6):
            library.docx(f"Page {number}", [text(f"Text of page {number}.")], folder)
        home = library.wiki(library.space("Handbook"), "Home", [text("Welcome.")])
        library.shortcut(library.thing(home))
        yield {
            "base_url": simulator.url,
            "app_id": feishu.APP_ID,
            "app_secret": feishu.APP_SECRET,
            "folder_token": library.root.token,
            "wiki_space": "all",
        }


@pytest.fixture
def source_web() -> Iterator[Mapping[str, str]]:
    with Web() as simulator:
        site = simulator.site()
        site.write("/docs/", "Stations", "All stations.", links=[f"/docs/{number}" for number in range(1, 30)])
        for number in range(1, 30):
            site.write(f"/docs/{number}", f"Page {number}", f"Text of page {number}.")
        yield {"entry_url": simulator.address(path="/docs/"), "delay_s": "0"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Around], Connector]]:
    given: Mapping[str, str] = request.getfixturevalue(f"source_{kind}")
    secret = {option.name for option in connectors.KINDS[kind].options if option.secret} if kind in connectors.KINDS else set()
    spec = SourceSpec(
        "source-1",
        kind,
        {name: value for name, value in given.items() if name not in secret},
        {name: value for name, value in given.items() if name in secret},
        private=("127.0.0.1",),
    )
    with plugged(monkeypatch):
        yield lambda around: connectors.create(spec, around)


def items_of(events: list[ScanEvent]) -> dict[str, SourceItem]:
    return {event.item.key: event.item for event in events if isinstance(event, Listed)}


def test_it_says_what_it_needs_to_be_told(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with plugged(monkeypatch):
        described = connectors.kind(kind)
    assert described.name == kind and described.about
    names = [option.name for option in described.options]
    assert len(names) == len(set(names)) and all(name.isidentifier() and name == name.lower() for name in names)
    assert all(option.about for option in described.options)


def test_valid_credentials_pass_and_every_finding_has_a_name(make: Callable[[Around], Connector]) -> None:
    checks = make(Around()).validate()
    assert checks and all(isinstance(check, SourceCheck) and check.name and check.ok for check in checks)


def test_a_scan_tells_each_item_once_and_ends_every_scope(make: Callable[[Around], Connector]) -> None:
    events = list(make(Around()).scan({}))
    listed = [event for event in events if isinstance(event, Listed)]
    assert len(listed) >= 3
    keys = [event.item.key for event in listed]
    assert len(keys) == len(set(keys)) and all(keys)
    done = {event.scope: event.count for event in events if isinstance(event, ScopeDone)}
    assert not [event for event in events if isinstance(event, ScopeFailed)]
    assert {event.scope for event in listed} <= set(done)
    assert all(done[scope] <= sum(event.scope == scope for event in listed) for scope in done)


def test_two_scans_of_an_unchanged_source_tell_the_same(make: Callable[[Around], Connector]) -> None:
    first, second = (items_of(list(make(Around()).scan({}))) for _ in range(2))
    assert {key: (item.revision, item.title, item.url) for key, item in first.items()} == {
        key: (item.revision, item.title, item.url) for key, item in second.items()
    }


def test_a_scan_taken_up_from_any_mark_skips_nothing(make: Callable[[Around], Connector]) -> None:
    events = list(make(Around()).scan({}))
    everything = set(items_of(events))
    for position, event in enumerate(events):
        if isinstance(event, Mark):
            before = set(items_of(events[:position]))
            after = set(items_of(list(make(Around()).scan(event.checkpoint))))
            assert everything <= before | after


def test_a_download_is_the_item_and_can_be_repeated(make: Callable[[Around], Connector]) -> None:
    around = Around()
    items = items_of(list(make(around).scan({})))
    connector = make(around)
    for item in list(items.values())[:3]:
        raw = connector.fetch(item)
        assert isinstance(raw, RawDocument) and raw.item.key == item.key
        assert raw.data and raw.sha256 == content_hash(raw.data)
        assert connector.fetch(item).sha256 == raw.sha256
        if raw.crawled is not None:
            assert raw.crawled.content_length == len(raw.crawled.content) and raw.crawled.crawl_timestamp.tzinfo is not None


def test_an_item_that_is_not_there_is_a_failure_of_its_own(make: Callable[[Around], Connector]) -> None:
    around = Around()
    item = next(iter(items_of(list(make(around).scan({}))).values()))
    ghost = SourceItem(f"{item.key}-ghost", item.revision, item.title, f"{item.url}-ghost", f"{item.path}-ghost", item.media_type)
    with pytest.raises(PipelineError) as raised:
        make(around).fetch(ghost)
    assert isinstance(raised.value, Gone) or raised.value.detail


def test_a_scan_that_was_stopped_ends(make: Callable[[Around], Connector]) -> None:
    around = Around()
    scan = make(around).scan({})
    around.stopped = True
    try:
        events = list(scan)
    except Cancelled:
        return
    assert len(events) <= 1000, "a short scan may end before it looks"


# ---------------------------------------------------------------- one that keeps no promise


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with plugged(monkeypatch):
        made = Bench(tmp_path / "home")
        made.sources.create("hostile", "hostile", "docs", options={"how": "ends_without_a_word"})
        yield made
        made.close()


def tried(bench: Bench, how: str):
    bench.sources.update("hostile", options={"how": how})
    return bench.sync("hostile")


@pytest.mark.parametrize(
    ("how", "indexed"),
    [
        ("repeats", 1),
        ("promises_more", 1),
        ("promises_less", 2),
        ("ends_without_a_word", 1),
        ("ends_twice", 1),
        ("marks_first", 1),
        ("deletes_what_it_never_had", 1),
        ("same_key_other_page", 1),
        ("climbs_out", 6),
    ],
)
def test_what_is_odd_but_harmless_is_taken_as_it_is(bench: Bench, how: str, indexed: int) -> None:
    run = tried(bench, how)
    assert (run.status, run.indexed, run.discovered) == ("done", indexed, indexed)
    assert bench.audit() == indexed
    assert not [view for view in bench.platform.documents("docs").data if "root:" in (view.text or "")]


def test_a_key_that_climbs_out_of_a_folder_reads_nothing_from_this_machine(bench: Bench) -> None:
    tried(bench, "climbs_out")
    texts = [bench.platform.document_text("docs", view.document_id) for view in bench.platform.documents("docs").data]
    assert len(texts) == 6 and all("weather stations" in text for text in texts)


def test_five_thousand_items_without_a_mark_are_taken_slice_by_slice(bench: Bench) -> None:
    bench.sources.update("hostile", options={"how": "floods"})
    run = bench.sources.sync("hostile")
    assert bench.listing()
    assert bench.platform.run(run.run_id).discovered == 5001


@pytest.mark.parametrize("how", ["gives_no_event", "gives_no_item", "marks_badly", "marks_hugely"])
def test_what_breaks_the_contract_fails_the_run_and_says_whose_fault_it_is(bench: Bench, how: str) -> None:
    run = tried(bench, how)
    assert run.status == "failed" and "connector 'hostile'" in run.warnings[-1]
    assert tried(bench, "repeats").status == "done"


def test_an_exception_fails_the_run_and_the_next_one_begins_anew(bench: Bench) -> None:
    bench.sources.update("hostile", options={"how": "raises"})
    run = bench.sources.sync("hostile")
    with pytest.raises(KeyError):
        bench.listing()
    assert "broke off with KeyError" in bench.platform.run(run.run_id).warnings[0]
    bench.platform.cancel(run.run_id)
    assert tried(bench, "repeats").status == "done"


@pytest.mark.parametrize("how", ["shouts", "mumbles"])
def test_what_no_database_keeps_is_cut_cleaned_or_refused_item_by_item(bench: Bench, how: str) -> None:
    run = tried(bench, how)
    assert run.status == "done" and run.indexed >= 1 and run.failed >= 2
    assert {failure.code for failure in run.failures} <= {"bad_key", "bad_metadata"}
    assert all(len(warning) <= 1000 for warning in run.warnings)


def test_downloads_that_are_none_fail_alone(bench: Bench) -> None:
    bench.runtime.max_attempts = 1
    run = tried(bench, "fetches_nothing")
    assert run.indexed == 2, "the good one, and the one under somebody else's name"
    assert {failure.code for failure in run.failures} == {"broken_contract", "bug"}
    assert {view.document for view in bench.platform.documents("docs").data if view.status == "done"} == {"hostile:good", "hostile:other"}
