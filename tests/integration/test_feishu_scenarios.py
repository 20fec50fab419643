"""A simulated Feishu through a whole system with real workers: what is listed, read, kept, lost and deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.feishu_sync import Source, Tenant
from tests.feishu_sync import tenant as simulated
from tests.simulators.feishu import Feishu
from tests.simulators.feishu_blocks import (
    Block,
    bitable,
    bullet,
    callout,
    code,
    divider,
    grid,
    heading,
    image,
    mirror,
    ordered,
    person,
    quote,
    run,
    sheet,
    table,
    text,
    todo,
    unknown,
)
from tests.simulators.feishu_gate import html, refused, truncated
from tests.simulators.feishu_model import Page, Table
from tests.simulators.served import Answer, Clock
from tests.system import System


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("feishu") / "home") as running:
        yield running


def throttled(times: float = 0.1) -> Answer:
    return refused(99991400, "request trigger frequency limit", 429, headers={"x-ogw-ratelimit-reset": str(times)})


# ------------------------------------------------------------ listing


def test_every_object_is_listed_once_with_all_ways_to_it_over_pages_shortcuts_and_cycles(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    first = library.folder("First")
    second = library.folder("Second", first)
    many = [library.docx(f"Page {number:03}", [text("x")], second) for number in range(450)]
    library.shortcut(many[7])
    space = library.space("Handbook")
    home = library.wiki(space, "Home", [text("x")])
    below = library.wiki(space, "Below", [text("x")], home)
    library.alias(space, home, below)
    tenant = source(wiki_space=space.id, folder_token=library.root.token)
    done = tenant.sync()
    assert (done.discovered, done.indexed) == (452, 452)
    assert len(tenant.feishu.asked(r"/drive/v1/files$")) == 5, "three folders, one of three pages"
    listed = {view.document: view for view in tenant.platform.documents(tenant.name, limit=1000).data}
    assert listed[f"{tenant.name}:docx:{many[7].token}"].metadata["paths"] == ["First/Second/Page 007", "Page 007"]
    assert listed[f"{tenant.name}:docx:{library.thing(home).token}"].metadata["paths"] == ["Handbook/Home", "Handbook/Home/Below/Home"]
    assert tenant.audit() == 452


def test_a_page_that_is_empty_for_want_of_rights_ends_no_listing(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    space = library.space("Handbook")
    nodes = [library.wiki(space, f"Page {number}", [text("x")]) for number in range(120)]
    library.hide(*nodes[:100])
    tenant = source(wiki_space=space.id, folder_token="")
    assert tenant.sync().indexed == 20
    assert tenant.audit() == 20


def test_a_listing_that_goes_in_circles_fails_its_scope_after_few_calls_and_deletes_nothing(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    folder = library.folder("Large")
    docs = [library.docx(f"Page {number}", [text("x")], folder) for number in range(3)]
    tenant = source()
    tenant.sync()
    library.vanish(folder, share=1.0)
    others = [library.file(f"new-{number}.md", b"# new", folder) for number in range(201)]
    feishu.pager.repeat_from, feishu.pager.repeat_on = 2, folder.token
    library.hide(*others)
    for _ in range(3):
        before = tenant.asked(r"/drive/v1/files$")
        run_ = tenant.sync()
        assert run_.deleted == 0 and "second time" in run_.warnings[0]
        assert tenant.asked(r"/drive/v1/files$") - before <= 5
    assert tenant.audit() == len(docs)


def test_a_folder_that_is_throttled_for_long_fails_alone_and_deletes_nothing_until_it_can_be_listed(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    calm, busy = library.folder("Calm"), library.folder("Busy")
    library.docx("Calm page", [text("x")], calm)
    gone, kept = library.docx("Gone", [text("x")], busy), library.docx("Kept", [text("x")], busy)
    tenant = source()
    assert tenant.sync().indexed == 3
    library.delete(gone)
    library.docx("New calm page", [text("fresh")], calm)
    trouble = feishu.trouble(f"folder_token={busy.token}", throttled(0.05), times=10_000)
    run_ = tenant.sync()
    assert (run_.indexed, run_.deleted) == (1, 0), "what could be listed is there"
    assert f"folder:{busy.token} could not be listed" in run_.warnings[0]
    assert tenant.audit() == 4
    trouble.times = 0
    assert tenant.sync().deleted == 1
    assert tenant.audit() == 3 and kept.title in tenant.texts()


def test_validate_names_the_scopes_that_are_missing(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    library.docx("Page", [text("x")])
    space = library.space("Handbook")
    library.wiki(space, "Home", [text("x")])
    tenant = source(wiki_space="all", folder_token=library.root.token)
    assert all(check.ok for check in tenant.platform.sources.validate(tenant.name))
    feishu.missing |= {"wiki:wiki:readonly", "docx:document:readonly"}
    told = {check.name: check for check in tenant.platform.sources.validate(tenant.name) if not check.ok}
    assert "wiki:wiki:readonly" in told["wiki"].detail and "docx:document:readonly" in told["content of docx"].detail
    assert "publish" in told["wiki"].hint
    feishu.missing = {"drive:drive:readonly"}
    assert [check.detail for check in tenant.platform.sources.validate(tenant.name) if check.name.startswith("folder")] == [
        "the app lacks a scope: drive:drive:readonly"
    ]
    feishu.tokens.app_secret = "rotated"
    feishu.tokens.revoke()
    (refusal,) = tenant.platform.sources.validate(tenant.name)
    assert not refusal.ok and "refuses the app's credentials" in refusal.detail


def test_a_wrong_kind_that_is_answered_as_not_found_deletes_nothing(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    folder = library.folder("Folder")
    doc = library.docx("Page", [text("x")], folder)
    library.docx("Other", [text("x")], folder)
    tenant = source()
    tenant.sync()
    library.vanish(folder, share=0.5)
    strange = {"metas": [], "failed_list": [{"token": doc.token, "code": 970005}]}
    feishu.trouble(r"metas/batch_query", Answer.json({"code": 0, "data": strange}), times=100)
    for _ in range(3):
        assert tenant.sync().deleted == 0
    assert tenant.audit() == 2


def test_an_edit_within_the_second_of_the_last_one_is_not_missed(system: System, name: str) -> None:
    clock = Clock(float(int(time.time())))
    with simulated(system, name, clock=clock) as feishu:
        doc = feishu.library.docx("Page", [text("first words")])
        tenant = Tenant(feishu, system, name)
        tenant.sync()
        feishu.library.edit(doc, [text("second words")], stamped=False)
        tenant.sync()
        assert tenant.finds("second") == ["Page"] and tenant.finds("first") == []


def test_names_that_climb_differ_in_case_or_are_the_same_give_safe_paths_of_their_own(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    names = ["a/../../b", "..", "README", "readme", "水" * 250, "🦆 duck", "Twice", "Twice", "tab\tand\x00null"]
    for title in names:
        library.docx(title, [text("words")])
    tenant = source()
    assert tenant.sync().indexed == len(names)
    paths = [str(view.metadata["path"]) for view in tenant.documents().values()]
    assert len({path.casefold() for path in paths}) == len(names)
    for path in paths:
        assert "/" not in path and "\0" not in path and path.strip(".") and len(path) < 300


# ------------------------------------------------------------ content


def test_a_document_of_many_kinds_of_blocks_loses_no_words_and_counts_what_it_cannot_show(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    secret = library.docx("Secret", [text("hidden words")], loose=True)
    library.forbid(secret)
    other = library.docx("Other", [callout(text("lent words"))], loose=True)
    lent = next(block["block_id"] for block in other.blocks if block["block_type"] == 19)
    picture = library.medium(b"png")
    library.people["ou_1"] = "林岑"
    doc = library.docx(
        "Everything",
        [
            heading(1, "Top", text("under the heading")),
            bullet("outer", bullet("inner", ordered("deepest"))),
            todo("done thing", done=True),
            code("```\nfenced\n```", 49),
            callout(text("called out")),
            grid([text("left column")], [text("right column")]),
            quote("quoted"),
            divider(),
            unknown(text("below the unknown")),
            mirror(secret.token, secret.blocks[1]["block_id"]),
            mirror(other.token, lent),
            table([["a", "b"], ["c", [image(picture.token, "a gauge"), text("beside the picture")]]], spans={(0, 0): (1, 2)}),
            text("written by ", person("ou_1"), " and ", run("bold", bold=True, link="https://example.org/x")),
        ],
    )
    tenant = source(folder_token="", links=f"https://waterworks.feishu.cn/docx/{doc.token}")
    assert tenant.sync().indexed == 1
    written = tenant.texts()["Everything"]
    for words in (
        "Top|under the heading|outer|inner|1. deepest|[x] done thing|fenced|called out|left column|right column|> quoted|below the unknown|"
        "lent words|a gauge|beside the picture|@林岑|[**bold**](https://example.org/x)"
    ).split("|"):
        assert words in written, words
    assert "````" in written, "the fence is longer than what it holds"
    assert "hidden words" not in written and "[synced block]" in written


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(4, id="between its pages"),  # token, listing, metadata, page 1, page 2
        pytest.param(7, id="while its revision is watched"),  # token, listing, metadata, pages 1 and 2, revision, page 1
    ],
)
def test_a_document_written_while_it_is_read_is_read_again(feishu: Feishu, source: Source, calls: int) -> None:
    library = feishu.library
    doc = library.docx("Long", [text(f"old {number}") for number in range(1300)])
    tenant = source()
    edited = [text(f"new {number}") for number in range(1300)]
    feishu.after[calls] = lambda: library.edit(doc, edited, stamped=False)
    assert tenant.sync().indexed == 1
    written = tenant.texts()["Long"]
    assert written.count("new ") == 1300 and "old " not in written


def test_an_embedded_sheet_shows_what_people_see_over_all_its_columns(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    rows = [[f"c{number}" for number in range(120)], ["2026-05-01", "42", *[""] * 117, "last"]]
    page = Page("pg1", "Levels", rows, merges=[(1, 1, 2, 3)], raw={(1, 0): 46143, (1, 1): "=A1*2"})
    book = library.sheet("Book", [page, Page("pg2", "Hidden", [["no"]], hidden=True)], loose=True)
    doc = library.docx("Host", [text("see"), sheet(book.token, "pg1")])
    tenant = source()
    tenant.sync()
    written = tenant.texts()["Host"]
    assert "2026-05-01" in written and "42" in written and "46143" not in written and "=A1" not in written
    assert "c119" in written and "last" in written
    page.rows[1][1] = "43"
    assert tenant.sync().indexed == 1, "what is embedded is looked at although its host was not edited"
    assert "43" in tenant.texts()["Host"] and doc.edited == book.edited


def test_an_embedded_base_shows_days_of_its_own_zone_and_files_that_take_more_than_their_token(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    midnight_in_china = 1_777_564_800_000
    plan = library.medium(b"pdf", "plan.pdf", kind="application/pdf", table="tbl1")
    rows = [{"Name": "Dredging", "Day": midnight_in_china, "Files": [plan]}]
    app = library.bitable("Works", [Table("tbl1", "Plans", [("Name", 1), ("Day", 5), ("Files", 17)], rows)], loose=True)
    library.docx("Host", [bitable(app.token, "tbl1")])
    tenant = source()
    tenant.sync()
    written = tenant.texts()["Host"]
    assert "Dredging" in written and "2026-05-01" in written and "plan.pdf" in written
    (view,) = tenant.documents().values()
    assert view.metadata["assets"] == ["file plan.pdf external"]


def test_a_base_whose_rows_are_hidden_by_its_permissions_keeps_those_of_last_time(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    app = library.bitable("Works", [Table("tbl1", "Plans", [("Name", 1)], [{"Name": "Dredging"}])])
    tenant = source()
    tenant.sync()
    feishu.clock.advance(60)
    app.tables[0].locked = True
    app.edited = feishu.clock.now()
    run_ = tenant.sync()
    assert (run_.failed, run_.deleted) == (0, 0)
    assert tenant.finds("Dredging") == ["Works"]


@pytest.mark.parametrize("answer", [html(), truncated(), html(502), Answer(200, b"[]", {"content-type": "application/json"})])
def test_an_answer_that_is_none_is_asked_for_again(feishu: Feishu, source: Source, answer: Answer) -> None:
    feishu.library.docx("Page", [text("words")])
    feishu.trouble(r"/drive/v1/files\?", answer)
    feishu.trouble(r"/blocks\?", answer)
    tenant = source()
    assert tenant.sync().indexed == 1


def test_fields_that_have_another_shape_than_documented_are_borne(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    cell = Block(2, "text", {"elements": None})
    doc = library.docx("Odd", [table([["kept", "words"]]), cell, text("end")])
    for block in doc.blocks:
        if block["block_type"] == 31:
            block["table"]["property"].pop("merge_info", None)
        if block["block_type"] == 32:
            block["children"] = block["children"][0]
    tenant = source()
    assert tenant.sync().indexed == 1
    written = tenant.texts()["Odd"]
    assert "kept" in written and "words" in written and "end" in written


def test_what_has_no_interface_is_left_aside_and_said_so(feishu: Feishu, source: Source) -> None:
    feishu.library.other("mindnote", "Map")
    feishu.library.docx("Page", [text("x")])
    tenant = source()
    run_ = tenant.sync()
    assert (run_.status, run_.indexed, run_.skipped, run_.failed) == ("done", 1, 1, 0)
    assert tenant.sync().skipped == 1 and tenant.asked(r"bmncn") == 0


def test_documents_come_as_markdown_where_the_app_may_not_read_blocks(feishu: Feishu, source: Source) -> None:
    feishu.library.docx("Page", [heading(1, "Nights"), text("twenty words")])
    feishu.missing.add("docx:document:readonly")
    tenant = source()
    assert tenant.sync().indexed == 1
    assert "twenty words" in tenant.texts()["Page"] and tenant.finds("twenty") == ["Page"]
