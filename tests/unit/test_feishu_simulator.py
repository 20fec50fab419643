"""The simulated Feishu, where a fault of it would make the scenarios of the connector lie."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from tests.simulators.feishu import APP_ID, APP_SECRET, Feishu
from tests.simulators.feishu_blocks import bullet, heading, table, text
from tests.simulators.feishu_docs import words
from tests.simulators.feishu_gate import limited, reset
from tests.simulators.feishu_jobs import TOKENLESS
from tests.simulators.feishu_large import grow, stir
from tests.simulators.feishu_library import QUESTIONS, fill
from tests.simulators.feishu_model import Library, Table
from tests.simulators.served import Answer, Call, Clock, Simulator


class Reader:
    """A plain client: it refreshes nothing, retries nothing, and keeps what came."""

    def __init__(self, feishu: Feishu) -> None:
        self.feishu = feishu
        self.http = httpx.Client(base_url=f"{feishu.url}/open-apis", trust_env=False)
        self.token = self.login()

    def login(self, secret: str = APP_SECRET) -> str:
        answer = self.http.post("/auth/v3/tenant_access_token/internal", json={"app_id": APP_ID, "app_secret": secret}).json()
        self.left, self.token = answer.get("expire", 0), answer.get("tenant_access_token", "")
        return self.token

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.http.get(path, params=params, headers={"authorization": f"Bearer {self.token}"})

    def data(self, path: str, **params: Any) -> Any:
        answer = self.get(path, **params).json()
        assert answer["code"] == 0, answer
        return answer["data"]

    def post(self, path: str, **body: Any) -> Any:
        return self.http.post(path, json=body, headers={"authorization": f"Bearer {self.token}"}).json()


class Door(Simulator):
    """One server for all tests of this module; behind it stands another tenant in each."""

    behind: Feishu

    def _decide(self, call: Call) -> Answer:
        return self.behind._decide(replace(call, at=self.behind.clock.now()))


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with Door() as door:
        yield door


@pytest.fixture
def feishu(door: Door) -> Feishu:
    door.behind = Feishu()
    door.behind.url = door.url
    return door.behind


def code(answer: httpx.Response) -> tuple[int, int]:
    return answer.status_code, answer.json()["code"]


def test_a_token_stays_the_same_until_half_an_hour_is_left_and_the_old_one_stays_valid_beside_the_new(feishu: Feishu) -> None:
    reader = Reader(feishu)
    first = reader.token
    feishu.clock.advance(7200 - 1800)
    assert (reader.login(), reader.left) == (first, 1800)
    feishu.clock.advance(1)
    second = reader.login()
    assert second != first and reader.left == 7200
    for token in (first, second):
        reader.token = token
        assert reader.get("/wiki/v2/spaces").status_code == 200
    feishu.clock.advance(1799)
    reader.token = first
    assert code(reader.get("/wiki/v2/spaces")) == (400, 99991663)


def test_revoked_missing_and_malformed_tokens_are_told_apart_and_a_wrong_secret_gets_none(feishu: Feishu) -> None:
    reader = Reader(feishu)
    feishu.tokens.revoke()
    assert code(reader.get("/wiki/v2/spaces")) == (400, 99991663)
    assert reader.login() != "" and reader.get("/wiki/v2/spaces").status_code == 200
    reader.token = "x-1"
    assert code(reader.get("/wiki/v2/spaces")) == (400, 99991671)
    assert code(reader.http.get("/wiki/v2/spaces")) == (400, 99991661)
    assert reader.login("wrong") == ""


def test_the_record_of_rates_counts_every_arrival_in_a_window_that_slides(feishu: Feishu) -> None:
    reader, document = Reader(feishu), feishu.library.docx("A", [text("a")])
    feishu.trouble("documents", limited(status=400), times=2)
    for step in (0.0, 0.6, 0.0, 0.0, 0.6, 0.0):
        feishu.clock.advance(step)
        reader.get(f"/docx/v1/documents/{document.token}/blocks")
    # the last five arrive within 0.6 s, though no second of the clock's own holds more than four
    assert feishu.meter.peak("docx.blocks") == 5 and feishu.meter.over() == {}
    reader.get(f"/docx/v1/documents/{document.token}/blocks")
    assert feishu.meter.over() == {"docx.blocks": "6 in 1 s, allowed are 5"}


def test_an_enforced_limit_refuses_in_the_disguise_of_its_route_until_the_time_it_names(feishu: Feishu) -> None:
    feishu.meter.enforced = True
    reader, document = Reader(feishu), feishu.library.docx("A", [text("a")])
    path = f"/docx/v1/documents/{document.token}"
    assert [reader.get(path).status_code for _ in range(6)] == [200] * 5 + [400]
    refusal = reader.get(path)
    assert code(refusal) == (400, 99991400) and refusal.headers["x-ogw-ratelimit-reset"] == "1"
    assert reader.get(f"{path}/blocks").status_code == 200
    feishu.clock.advance(1)
    assert reader.get(path).status_code == 200
    feishu.meter.disguise["docx.get"] = 200
    assert [code(reader.get(path)) for _ in range(5)] == [(200, 0)] * 4 + [(200, 99991400)]
    assert [reader.get("/drive/v1/files").status_code for _ in range(21)] == [200] * 20 + [429]


def test_the_daily_cap_of_downloads_lasts_until_midnight_in_china(feishu: Feishu) -> None:
    feishu.meter.enforced, feishu.meter.limits["media"] = True, ((2, 86_400.0),)
    reader, token = Reader(feishu), feishu.library.medium(b"x").token
    assert [reader.get(f"/drive/v1/medias/{token}/download").status_code for _ in range(3)] == [200, 200, 429]
    left = int(reader.get(f"/drive/v1/medias/{token}/download").headers["x-ogw-ratelimit-reset"])
    assert (feishu.clock.now() + left + 8 * 3600) % 86_400 == 0
    feishu.clock.advance(left)
    reader.login()
    assert reader.get(f"/drive/v1/medias/{token}/download").status_code == 200


def listed(reader: Reader, folder: str, size: int, between: Any = None) -> list[str]:
    """Names in a folder, page after page."""
    names: list[str] = []
    page = reader.data("/drive/v1/files", folder_token=folder, page_size=size, order_by="CreatedTime", direction="ASC")
    while True:
        names += [row["name"] for row in page["files"]]
        if not page["has_more"]:
            assert "next_page_token" not in page
            return names
        if between is not None:
            between, then = None, between
            then()
        cursor = page["next_page_token"]
        page = reader.data("/drive/v1/files", folder_token=folder, page_size=size, page_token=cursor, order_by="CreatedTime", direction="ASC")


def test_pages_hold_each_entry_once_and_their_tokens_belong_to_one_listing(feishu: Feishu) -> None:
    reader, folder, other = Reader(feishu), feishu.library.folder("A"), feishu.library.folder("B")
    for number in range(450):
        feishu.library.docx(f"{number:03d}", folder=folder)
    assert listed(reader, folder.token, 200) == [f"{number:03d}" for number in range(450)]
    cursor = reader.data("/drive/v1/files", folder_token=folder.token)["next_page_token"]
    assert code(reader.get("/drive/v1/files", folder_token=other.token, page_token=cursor)) == (400, 1061002)
    assert code(reader.get("/drive/v1/files", folder_token=folder.token, page_token="made-up")) == (400, 1061002)
    feishu.pager.void()
    assert code(reader.get("/drive/v1/files", folder_token=folder.token, page_token=cursor)) == (400, 1061002)


@pytest.mark.parametrize(("still", "expected"), [(True, "abcd"), (False, "abd")])
def test_what_leaves_between_two_pages_shifts_the_rest_only_where_listings_are_not_held_still(feishu: Feishu, still: bool, expected: str) -> None:
    reader, folder = Reader(feishu), feishu.library.folder("A")
    things = [feishu.library.docx(name, folder=folder) for name in "abcd"]
    feishu.pager.still = still
    assert "".join(listed(reader, folder.token, 2, lambda: feishu.library.delete(things[0]))) == expected


def test_hidden_pages_leave_an_empty_answer_that_says_there_is_more(feishu: Feishu) -> None:
    reader, space = Reader(feishu), feishu.library.space("S")
    nodes = [feishu.library.wiki(space, f"{number}") for number in range(4)]
    feishu.library.hide(*nodes[:2])
    first = reader.data(f"/wiki/v2/spaces/{space.id}/nodes", page_size=2)
    assert (first["items"], first["has_more"]) == ([], True)
    second = reader.data(f"/wiki/v2/spaces/{space.id}/nodes", page_size=2, page_token=first["page_token"])
    assert [row["title"] for row in second["items"]] == ["2", "3"] and not second["has_more"]


def test_a_repeated_page_token_comes_again_and_again(feishu: Feishu) -> None:
    reader, space = Reader(feishu), feishu.library.space("S")
    for number in range(6):
        feishu.library.wiki(space, f"{number}")
    feishu.pager.repeat_from = 2
    token = reader.data(f"/wiki/v2/spaces/{space.id}/nodes", page_size=2)["page_token"]
    for _ in range(3):
        page = reader.data(f"/wiki/v2/spaces/{space.id}/nodes", page_size=2, page_token=token)
        assert page["has_more"] and page["page_token"] == token


def test_an_edit_between_two_pages_of_blocks_tears_the_reading_and_moves_the_revision(feishu: Feishu) -> None:
    reader, document = Reader(feishu), feishu.library.docx("A", [text("one"), text("two"), text("three")])
    path = f"/docx/v1/documents/{document.token}"
    first = reader.data(f"{path}/blocks", page_size=2, document_revision_id=-1)
    feishu.library.edit(document, [text("new"), text("newer"), text("newest")])
    second = reader.data(f"{path}/blocks", page_size=2, document_revision_id=-1, page_token=first["page_token"])
    assert [words(row) for row in first["items"] + second["items"]] == ["A", "one", "newer", "newest"]
    assert reader.data(path)["document"]["revision_id"] == 2
    assert code(reader.get(f"{path}/blocks", document_revision_id=1)) == (403, 1770032)
    feishu.editor = True
    assert [words(row) for row in reader.data(f"{path}/blocks", document_revision_id=1)["items"]] == ["A", "one", "two", "three"]


def test_blocks_form_one_tree_whose_order_is_that_of_the_children(feishu: Feishu) -> None:
    document = feishu.library.docx("A", [heading(1, "h", text("inside")), bullet("b", bullet("c")), table([["1", "2"]])])
    rows = Reader(feishu).data(f"/docx/v1/documents/{document.token}/blocks")["items"]
    held = {row["block_id"]: row for row in rows}
    assert rows[0]["block_id"] == document.token and len(held) == len(rows)
    assert all(row["block_id"] in held[row["parent_id"]]["children"] for row in rows[1:])

    def walk(own: str) -> list[str]:
        return [words(held[own]), *(word for child in held[own].get("children", ()) for word in walk(child))]

    assert list(filter(None, walk(document.token))) == ["A", "h", "inside", "b", "c", "1", "2"]


def test_what_is_deleted_moved_or_barred_shows_everywhere_at_once(feishu: Feishu) -> None:
    reader, library = Reader(feishu), feishu.library
    one, two, space = library.folder("1"), library.folder("2"), library.space("S")
    kept, lost, barred = (library.docx(name, folder=one) for name in ("kept", "lost", "barred"))
    library.node(space, kept)
    library.move(kept, two)
    library.delete(lost)
    library.forbid(barred)
    asked = [{"doc_token": thing.token, "doc_type": kind} for thing, kind in ((kept, "docx"), (kept, "sheet"), (lost, "docx"), (barred, "docx"))]
    data = reader.post("/drive/v1/metas/batch_query", request_docs=asked)["data"]
    assert [row["title"] for row in data["metas"]] == ["kept"]
    assert [row["code"] for row in data["failed_list"]] == [970005, 970005, 970003]
    assert (listed(reader, one.token, 9), listed(reader, two.token, 9)) == (["barred"], ["kept"])
    assert code(reader.get(f"/docx/v1/documents/{lost.token}")) == (400, 1770003)
    assert code(reader.get(f"/docx/v1/documents/{barred.token}")) == (403, 1770032)
    assert reader.data("/wiki/v2/spaces/get_node", token=kept.token)["node"]["obj_token"] == kept.token


def test_an_export_takes_its_course_and_its_file_lasts_ten_minutes(feishu: Feishu) -> None:
    reader, document = Reader(feishu), feishu.library.docx("A", [text("words")])
    feishu.exports.course = (1, 2, TOKENLESS)
    ticket = reader.post("/drive/v1/export_tasks", token=document.token, type="docx", file_extension="docx")["data"]["ticket"]
    polls = [reader.data(f"/drive/v1/export_tasks/{ticket}", token=document.token)["result"] for _ in range(4)]
    assert [(poll["job_status"], bool(poll["file_token"])) for poll in polls] == [(1, False), (2, False), (0, False), (0, True)]
    path = f"/drive/v1/export_tasks/file/{polls[-1]['file_token']}/download"
    assert reader.get(path).content.startswith(b"PK")
    feishu.clock.advance(601)
    assert reader.get(path).status_code == 404
    feishu.exports.course, feishu.exports.ends[document.token] = (), 107
    ticket = reader.post("/drive/v1/export_tasks", token=document.token, type="docx", file_extension="docx")["data"]["ticket"]
    assert reader.data(f"/drive/v1/export_tasks/{ticket}", token=document.token)["result"]["job_status"] == 107


def test_a_protected_table_answers_empty_and_its_files_want_to_be_named_with_it(feishu: Feishu) -> None:
    reader, medium = Reader(feishu), feishu.library.medium(b"paper", table="tbl1")
    rows = [{"Name": f"{number}", "Files": [medium]} for number in range(3)]
    base = feishu.library.bitable("B", [Table("tbl1", "T", [("Name", 1), ("Files", 17)], rows)])
    path = f"/bitable/v1/apps/{base.token}/tables/tbl1/records/search?page_size=2"
    first = reader.post(path)["data"]
    assert first["has_more"] and len(reader.post(f"{path}&page_token={first['page_token']}")["data"]["items"]) == 1
    address = first["items"][0]["fields"]["Files"][0]["url"]
    refused = reader.get(f"/drive/v1/medias/{medium.token}/download")
    assert (refused.status_code, refused.content) == (403, b"")
    assert reader.http.get(address, headers={"authorization": f"Bearer {reader.token}"}).content == b"paper"
    base.tables[0].locked = True
    assert reader.post(path)["data"]["items"] == []


def test_a_scripted_fault_strikes_the_requests_it_names_and_no_others(feishu: Feishu) -> None:
    reader, one, two = Reader(feishu), feishu.library.folder("1"), feishu.library.folder("2")
    feishu.trouble(rf"folder_token={one.token}\b", limited(3), times=1, skip=1)
    statuses = [reader.get("/drive/v1/files", folder_token=folder.token).status_code for folder in (one, two, one, two, one)]
    assert statuses == [200, 200, 429, 200, 200]
    feishu.trouble("spaces", reset())
    with pytest.raises(httpx.RemoteProtocolError):
        reader.get("/wiki/v2/spaces")
    feishu.missing.add("wiki:wiki:readonly")
    answer = reader.get("/wiki/v2/spaces").json()
    assert answer["code"] == 99991672 and answer["error"]["permission_violations"][0]["subject"] == "wiki:wiki:readonly"


def test_an_event_is_signed_over_the_bytes_that_are_sent_and_says_when(feishu: Feishu) -> None:
    document = feishu.library.docx("A")
    sent = feishu.events.about(document, age_s=600)
    stamp, nonce = sent.headers["X-Lark-Request-Timestamp"], sent.headers["X-Lark-Request-Nonce"]
    assert int(stamp) == int(feishu.clock.now()) - 600
    signed = hashlib.sha256(f"{stamp}{nonce}{feishu.events.encrypt_key}".encode() + sent.body).hexdigest()
    assert signed == sent.headers["X-Lark-Signature"]
    assert len(base64.b64decode(orjson.loads(sent.body)["encrypt"])) % 16 == 0
    assert feishu.events.about(document, key="another").headers["X-Lark-Signature"] != signed
    again = feishu.events.about(document, id=sent.id)
    assert again.id == sent.id and again.body != sent.body
    status, answer = feishu.events.push(f"{feishu.url}/hook", sent)
    arrived = feishu.calls[-1]
    assert (status, answer) == (404, b"404 page not found")
    assert (arrived.method, arrived.path, arrived.body, arrived.headers["x-lark-signature"]) == ("POST", "/hook", sent.body, signed)


def test_the_wiki_of_the_demonstration_answers_its_questions(feishu: Feishu) -> None:
    fill(feishu)
    library = feishu.library
    said = [words(row) for thing in library.things.values() for row in thing.blocks]
    said += [str(cell) for thing in library.things.values() for page in thing.pages for row in page.rows for cell in row]
    said += [str(value) for thing in library.things.values() for table in thing.tables for row in table.rows for value in row.values()]
    assert [question for question, answer in QUESTIONS if answer not in "\n".join(said)] == []


def test_a_large_wiki_is_the_same_for_the_same_seed_and_its_facts_stay_true() -> None:
    one, other = Library(Clock()), Library(Clock())
    grown, again = grow(one, 300, seed=5), grow(other, 300, seed=5)
    assert grown.facts == again.facts and {t: x.blocks for t, x in one.things.items()} == {t: x.blocks for t, x in other.things.items()}
    assert grow(Library(Clock()), 300, seed=6).facts != grown.facts
    done = stir(one, grown, share=0.5)
    assert sum(done.values()) == 150 and min(done.values()) > 0 and len(grown.facts) == 300 - done["deleted"]
    for _, tag, token in grown.facts:
        thing = one.things[token]
        held = [words(row) for row in thing.blocks] + [str(page.rows) for page in thing.pages] + [str(table.rows) for table in thing.tables]
        assert not thing.gone and any(tag in text for text in held)
