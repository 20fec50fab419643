"""A simulated Feishu through a whole system: real server, real workers, one running system for all."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.feishu_sync import Source, Tenant
from tests.simulators.feishu import Feishu
from tests.simulators.feishu_blocks import heading, image, run, text
from tests.simulators.feishu_gate import limited
from tests.simulators.feishu_model import Thing
from tests.simulators.served import Answer, Call
from tests.system import System, until


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("feishu") / "home") as running:
        yield running


def watched(feishu: Feishu, pattern: str) -> list[float]:
    """Moments at which calls arrive, as the wall clock has them; the simulator's own stands still."""
    at: list[float] = []
    answer = feishu.answer

    def seen(call: Call) -> Answer:
        if re.search(pattern, call.path):
            at.append(time.monotonic())
        return answer(call)

    feishu.answer = seen  # type: ignore[method-assign]
    return at


def rows_of(tenant: Tenant, column: str) -> list[tuple[int]]:
    """A column of the source's documents in the ledger."""
    system = tenant.home
    assert isinstance(system, System)
    return system.rows(f"SELECT {column} FROM documents WHERE key LIKE ?", f"{tenant.name}:%")


def rotate(feishu: Feishu) -> None:
    feishu.tokens.app_secret += "-rotated"
    feishu.tokens.revoke()


def test_a_folder_and_a_wiki_are_found_by_search_and_followed_through_changes(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    duty = library.folder("Duty")
    picture = library.medium(b"png")
    shifts = library.docx("Shifts", [heading(1, "Nights"), text("Night begins at ", run("twenty", bold=True)), image(picture.token)], duty)
    library.file("alarms.md", b"# Alarms\n\nThe siren is tested on Mondays.", duty)
    library.shortcut(shifts)
    space = library.space("Handbook")
    home = library.wiki(space, "Home", [text("The cooperative runs six gauges.")])
    gauges = library.wiki(space, "Gauges", [text("Gauge four freezes in winter.")], home)
    tenant = source(wiki_space="all", folder_token=library.root.token)
    first = tenant.sync()
    assert (first.status, first.discovered, first.indexed) == ("done", 4, 4), first
    assert tenant.audit() == 4
    assert tenant.finds("siren Mondays") == ["alarms.md"] and tenant.finds("freezes") == ["Gauges"]
    assert tenant.texts()["Shifts"].endswith("Night begins at **twenty**")
    asked = len(feishu.calls)
    second = tenant.sync()
    assert (second.discovered, second.unchanged) == (4, 4)
    assert len(feishu.calls) - asked <= 8, "a sync without changes costs listings and metadata alone"
    feishu.clock.advance(60)
    library.edit(shifts, [text("Night begins at ", run("nineteen", bold=True))])
    library.rename(library.thing(gauges), "Frozen gauges")
    library.delete(home)
    third = tenant.sync()
    assert third.deleted == 2, "the page and the one below it"
    assert tenant.audit() == 2 and tenant.finds("nineteen") == ["Shifts"] and tenant.finds("freezes") == []


def filled(feishu: Feishu, number: int, words: str = "words") -> list[Thing]:
    return [feishu.library.docx(f"Page {index}", [text(f"{words} of page {index}")]) for index in range(number)]


def stopped(tenant: Tenant) -> bool:
    return tenant.show().status == "stopped"


# ------------------------------------------------------------ limits and tokens


def test_a_rate_limit_in_the_disguise_of_a_bad_request_is_kept_by_all_workers_and_costs_no_attempt(feishu: Feishu, source: Source) -> None:
    filled(feishu, 8)
    at = watched(feishu, r"/blocks$")
    feishu.trouble(r"/blocks\?", limited(2, 400), times=1, skip=2)
    tenant = source()
    run_ = tenant.sync()
    assert (run_.indexed, run_.failed) == (8, 0)
    refusal = at[2]
    quiet = [moment for moment in at if refusal + 0.3 < moment < refusal + 1.7]
    assert not quiet, "nobody asks before the time that was named; what was under way by then may have arrived"
    assert all(attempts == 0 for (attempts,) in rows_of(tenant, "attempts"))


def test_a_route_is_asked_no_more_often_than_its_limit_by_all_workers_together(feishu: Feishu, source: Source) -> None:
    filled(feishu, 9)
    at = watched(feishu, r"/blocks$")
    tenant = source(rate_percent="100")
    assert tenant.sync().indexed == 9
    assert len(at) == 9
    # Nine calls at fewer than five a second are eight gaps; on their way some may catch up with others.
    assert at[-1] - at[0] > 8 / 5 - 0.3


def test_a_token_revoked_in_mid_run_is_replaced_once_for_all_and_no_document_is_lost(feishu: Feishu, source: Source) -> None:
    filled(feishu, 16)
    tenant = source()
    feishu.after[6] = feishu.tokens.revoke
    run_ = tenant.sync()
    assert (run_.indexed, run_.failed) == (16, 0)
    assert tenant.asked(r"/tenant_access_token/") == 2
    refused_ = [call for call in feishu.calls if call.status == 400]
    assert refused_, "some calls met the revoked token"
    assert len(feishu.asked(r"/blocks$")) == 16 + len([call for call in refused_ if call.path.endswith("/blocks")]), "each was sent again once"
    assert all(attempts == 0 for (attempts,) in rows_of(tenant, "attempts"))


def test_tokens_of_a_minute_are_shared_by_listing_and_downloads_and_renewed_in_time(feishu: Feishu, source: Source) -> None:
    feishu.tokens.life_s = 60
    filled(feishu, 12)
    tenant = source()
    assert tenant.sync().indexed == 12
    assert tenant.asked(r"/tenant_access_token/") == 1
    feishu.clock.advance(61)
    feishu.library.docx("Later", [text("words")])
    assert tenant.sync().indexed == 1
    assert tenant.asked(r"/tenant_access_token/") == 2


def test_a_rotated_secret_stops_the_source_after_two_calls_and_leaves_the_index(feishu: Feishu, source: Source) -> None:
    docs = filled(feishu, 10)
    tenant = source()
    tenant.sync()
    feishu.clock.advance(60)
    for doc in docs:
        feishu.library.edit(doc, [text("changed")])
    feishu.after[len(feishu.calls) + 2] = lambda: rotate(feishu)
    asked = tenant.asked(r"/tenant_access_token/")
    run_ = tenant.begin()
    until(lambda: stopped(tenant), 30.0, "the source is stopped")
    assert tenant.asked(r"/tenant_access_token/") - asked <= 2
    assert tenant.audit() == 10
    tenant.platform.sources.update(tenant.name, options={"app_secret": feishu.tokens.app_secret})
    until(lambda: tenant.platform.run(run_.run_id).finished, 15.0, "the documents that waited go on at once")
    assert tenant.sync().failed == 0
    assert set(tenant.texts().values()) == {f"Page {index}\n\nchanged" for index in range(10)}


# ------------------------------------------------------------ access, places, deletions


def test_a_document_that_may_not_be_read_is_hidden_at_once_and_comes_back_as_the_same(feishu: Feishu, source: Source) -> None:
    docs = filled(feishu, 3)
    tenant = source()
    tenant.sync()
    before = tenant.documents()
    feishu.library.forbid(docs[1])
    run_ = tenant.sync()
    assert (run_.failed, run_.deleted) == (0, 0)
    assert tenant.audit() == 2 and tenant.documents()[f"docx:{docs[1].token}"].status == "hidden"
    feishu.library.restore(docs[1])
    tenant.sync()
    assert tenant.audit() == 3
    assert {key: view.document_id for key, view in tenant.documents().items()} == {key: view.document_id for key, view in before.items()}


def test_a_document_moved_and_renamed_while_it_is_listed_is_one_document_and_takes_no_model_call(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    old, new = library.folder("Old"), library.folder("New")
    docs = [library.docx(f"Page {index:03}", [text(f"words of {index}")], old) for index in range(5)]
    fill = [library.file(f"filler-{index}.bin", b"", old) for index in range(200)]
    library.hide(*fill)
    tenant = source()
    assert tenant.sync().indexed == 5

    def moved() -> None:
        library.move(docs[2], new)
        library.rename(docs[2], "Renamed")

    # root, then the first page of the older folder
    feishu.after[len(feishu.calls) + 2] = moved
    run_ = tenant.sync()
    again = tenant.sync()
    assert (run_.deleted, again.deleted, tenant.audit()) == (0, 0, 5)
    view = tenant.documents()[f"docx:{docs[2].token}"]
    assert (view.title, view.metadata["path"]) == ("Renamed", "New/Renamed")
    assert run_.model_calls["embed"] == again.model_calls["embed"] == 0 or tenant.finds("Renamed") == ["Renamed"]


def test_a_deleted_document_goes_with_its_chunks_by_listing_and_by_download(feishu: Feishu, source: Source) -> None:
    docs = filled(feishu, 4)
    tenant = source()
    tenant.sync()
    feishu.library.delete(docs[0])
    feishu.library.trash(docs[1])
    run_ = tenant.sync()
    assert run_.deleted == 2 and tenant.audit() == 2
    assert tenant.finds("words") == ["Page 2", "Page 3"] or sorted(tenant.finds("words")) == ["Page 2", "Page 3"]
    feishu.clock.advance(60)
    feishu.library.edit(docs[2], [text("changed")])
    feishu.after[len(feishu.calls) + 2] = lambda: feishu.library.delete(docs[2])
    tenant.sync()

    def gone() -> bool:
        # Half way through a deletion, ledger and store may disagree.
        view = tenant.platform.audit(tenant.name)
        return view.ok and view.collections[0].documents == 1

    until(gone, 30.0, "what turned out to be gone when it was fetched is deleted")


def test_a_mass_disappearance_is_held_back_until_a_person_says_so(feishu: Feishu, source: Source) -> None:
    folder = feishu.library.folder("Folder")
    docs = [feishu.library.docx(f"Page {index}", [text("words")], folder) for index in range(30)]
    tenant = source()
    tenant.sync()
    feishu.library.vanish(folder, share=0.9)
    for _ in range(2):
        assert tenant.sync().deleted == 0, "the source says that they are alive"
    feishu.library.delete(*docs[:27])
    run_ = tenant.sync()
    assert run_.deleted == 0 and "27 documents" in run_.warnings[0]
    assert tenant.audit() == 30 and tenant.show().held == 27
    assert tenant.platform.sources.prune(tenant.name) == 27
    assert tenant.audit() == 3


def test_another_folder_takes_the_old_ones_documents_out_and_never_goes_on_with_an_old_listing(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    one, two = library.folder("One"), library.folder("Two")
    kept = library.docx("In both", [text("x")], one)
    library.docx("In one", [text("x")], one)
    library.shortcut(kept, two)
    library.docx("In two", [text("x")], two)
    tenant = source(folder_token=one.token)
    assert tenant.sync().indexed == 2
    tenant.platform.sources.update(tenant.name, options={"folder_token": two.token})
    tenant.sync()
    assert sorted(tenant.texts()) == ["In both", "In two"] and tenant.audit() == 2
