"""Exports, temporary links, boards, people and subscriptions of the simulated Feishu."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from tests.simulators import feishu_office
from tests.simulators.feishu_docs import words
from tests.simulators.feishu_drive import download
from tests.simulators.feishu_gate import fine, refused
from tests.simulators.feishu_model import Thing
from tests.simulators.served import Answer, Call

if TYPE_CHECKING:
    from tests.simulators.feishu import Feishu

EXPORT, DRIVE = "docs:document:export", "drive:drive:readonly"
FILE_LIFE_S = 600.0
"""How long the file of an export stays after the job has ended."""
LINK_LIFE_S = 86_400.0
FORMATS = {"doc": ("docx", "pdf"), "docx": ("docx", "pdf", "markdown"), "sheet": ("xlsx", "csv"), "bitable": ("xlsx", "csv")}
TOKENLESS = -1
"""In `Exports.course`: the job says 0 (done), yet names no file."""


@dataclass(slots=True)
class Job:
    """One export. `course` are the states that the next polls show; after them comes `ends`."""

    ticket: str
    thing: str
    extension: str
    sub: str
    course: list[int]
    ends: int
    ended: float = 0.0
    file: str = ""


@dataclass(slots=True)
class Exports:
    """How exports go: `course` that each new one takes, `ends` by the token of the object (0 when it names none)."""

    course: tuple[int, ...] = (1, 2)
    ends: dict[str, int] = field(default_factory=dict[str, int])
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])


class Jobs:
    """Handlers of what is neither listing nor content."""

    def __init__(self, feishu: Feishu) -> None:
        self.feishu, self.library, self.exports = feishu, feishu.library, feishu.exports
        self._links: dict[str, tuple[str, float]] = {}

    def routes(self) -> list[tuple[Any, ...]]:
        return [
            ("export.create", "POST", "/drive/v1/export_tasks", self.create, EXPORT),
            ("export.poll", "GET", "/drive/v1/export_tasks/:ticket", self.poll, EXPORT),
            ("export.file", "GET", "/drive/v1/export_tasks/file/:token/download", self.exported, EXPORT),
            ("media.links", "GET", "/drive/v1/medias/batch_get_tmp_download_url", self.links, "docs:document.media:download"),
            ("board", "GET", "/board/v1/whiteboards/:token/download_as_image", self.board_image, "board:whiteboard:node:read"),
            ("board", "GET", "/board/v1/whiteboards/:token/nodes", self.board_nodes, "board:whiteboard:node:read"),
            ("contact", "GET", "/contact/v3/users/batch", self.people, "contact:user.base:readonly"),
            ("contact", "GET", "/contact/v3/users/:id", self.person, "contact:user.base:readonly"),
            ("drive.subscribe", "POST", "/drive/v1/files/:token/subscribe", self.subscribe, "docs:event:subscribe"),
            ("drive.subscribe", "GET", "/drive/v1/files/:token/get_subscribe", self.subscribed, "docs:event:subscribe"),
            ("drive.subscribe", "DELETE", "/drive/v1/files/:token/delete_subscribe", self.unsubscribe, "docs:event:subscribe"),
        ]

    def create(self, call: Call, _found: re.Match[str]) -> Answer:
        given = orjson.loads(call.body or b"{}")
        token, kind, extension, sub = (str(given.get(name, "")) for name in ("token", "type", "file_extension", "sub_id"))
        if extension not in FORMATS.get(kind, ()) or (extension == "csv" and not sub):
            return refused(1069904, "invalid param")
        thing = self.library.things.get(token)
        if thing is not None and thing.type == kind and thing.barred:
            return refused(1069902, "no permission", 403)
        known = thing is not None and thing.type == kind
        ends = self.exports.ends.get(token, 0) if known else 123
        ends = 111 if thing is not None and thing.gone else 110 if thing is not None and thing.closed else ends
        made = Job(f"{7_100_000_000_000_000_000 + len(self.exports.jobs)}", token, extension, sub, list(self.exports.course), ends)
        self.exports.jobs[made.ticket] = made
        return fine({"ticket": made.ticket})

    def poll(self, call: Call, found: re.Match[str]) -> Answer:
        job = self.exports.jobs.get(found["ticket"])
        if job is None or call.query.get("token") != job.thing:
            return refused(1069904, "invalid param")
        thing = self.library.things.get(job.thing)
        row: dict[str, Any] = {"file_extension": job.extension, "type": thing.type if thing else "", "file_name": thing.title if thing else ""}
        if job.course:
            state = job.course.pop(0)
            return fine({"result": {**row, "file_token": "", "file_size": 0, "job_error_msg": "", "job_status": 0 if state == TOKENLESS else state}})
        job.ended = job.ended or self.feishu.clock.now()
        if job.ends or thing is None:
            return fine({"result": {**row, "file_token": "", "file_size": 0, "job_error_msg": "export failed", "job_status": job.ends}})
        job.file = f"boxex{job.ticket[-8:]}"
        size = len(self._made(thing, job))
        return fine({"result": {**row, "file_token": job.file, "file_size": size, "job_error_msg": "success", "job_status": 0}})

    def exported(self, call: Call, found: re.Match[str]) -> Answer:
        job = next((job for job in self.exports.jobs.values() if job.file == found["token"]), None)
        if job is None or self.feishu.clock.now() - job.ended > FILE_LIFE_S:
            return refused(1061003, "not found.", 404)
        thing = self.library.things[job.thing]
        return download(call, self._made(thing, job), f"{thing.title}.{job.extension}", "application/octet-stream")

    @staticmethod
    def _made(thing: Thing, job: Job) -> bytes:
        """What the editor exports: embedded sheets and tables are no words any more."""
        if job.extension == "markdown":
            return "\n\n".join(filter(None, map(words, thing.blocks))).encode()
        if thing.type in ("doc", "docx"):
            return feishu_office.document(thing.title, list(filter(None, map(words, thing.blocks[1:]))))
        pages = {page.id: (page.title, page.rows) for page in thing.pages}
        for table in thing.tables:
            rows = [[name for name, _ in table.fields], *([str(row.get(name, "")) for name, _ in table.fields] for row in table.rows)]
            pages[table.id] = (table.name, rows)
        if job.extension == "csv":
            out = io.StringIO()
            csv.writer(out).writerows(pages.get(job.sub, ("", []))[1])
            return out.getvalue().encode()
        return feishu_office.workbook(dict(pages.values()))

    def links(self, call: Call, _found: re.Match[str]) -> Answer:
        tokens = parse_qs(call.raw_query).get("file_tokens", [])
        if not 1 <= len(tokens) <= 5:
            return refused(1061002, "params error.")
        made: list[dict[str, str]] = []
        for token in tokens:
            medium = self.library.media.get(token)
            if medium is not None and not medium.forbidden and (not medium.table or medium.table in call.query.get("extra", "")):
                secret = f"authcode{len(self._links):06d}"
                self._links[secret] = (token, self.feishu.clock.now() + LINK_LIFE_S)
                made.append({"file_token": token, "tmp_download_url": f"{self.feishu.url}/space/api/box/stream/download/authcode/{secret}"})
        return fine({"tmp_download_urls": made})

    def linked(self, call: Call) -> Answer | None:
        """What a temporary link leads to; None when the path is no such link."""
        found = re.fullmatch(r"/space/api/box/stream/download/authcode/(\w+)", call.path)
        if found is None:
            return None
        token, until = self._links.get(found[1], ("", 0.0))
        if until <= self.feishu.clock.now():
            return Answer(403)
        medium = self.library.media[token]
        return download(call, medium.content, medium.name, medium.kind)

    def board_image(self, _call: Call, found: re.Match[str]) -> Answer:
        words_, picture = self.library.boards.get(found["token"], ((), b""))
        return Answer(200, picture, {"content-type": "image/png"}) if words_ or picture else refused(2890002, "invalid arg", 404)

    def board_nodes(self, _call: Call, found: re.Match[str]) -> Answer:
        if found["token"] not in self.library.boards:
            return refused(2890002, "invalid arg", 404)
        nodes = [{"id": f"o1:{n}", "type": "text_shape", "text": {"text": text}} for n, text in enumerate(self.library.boards[found["token"]][0])]
        return fine({"nodes": nodes})

    def person(self, _call: Call, found: re.Match[str]) -> Answer:
        name = self.library.people.get(found["id"])
        return refused(41050, "no user authority error") if name is None else fine({"user": {"open_id": found["id"], "name": name}})

    def people(self, call: Call, _found: re.Match[str]) -> Answer:
        asked = parse_qs(call.raw_query).get("user_ids", [])
        return fine({"items": [{"open_id": one, "name": self.library.people[one]} for one in asked if one in self.library.people]})

    def subscribe(self, call: Call, found: re.Match[str]) -> Answer:
        thing = self.library.things.get(found["token"])
        if thing is None or thing.gone or thing.type != call.query.get("file_type"):
            return refused(1061003, "not found.", 404)
        if not self.feishu.keeper:
            return refused(1061004, "forbidden.", 403)
        self.feishu.subscribed.add(thing.token)
        return fine({})

    def subscribed(self, _call: Call, found: re.Match[str]) -> Answer:
        return fine({"is_subscribe": found["token"] in self.feishu.subscribed})

    def unsubscribe(self, _call: Call, found: re.Match[str]) -> Answer:
        self.feishu.subscribed.discard(found["token"])
        return fine({})
