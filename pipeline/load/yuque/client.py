"""Yuque's API v2: what was asked, what came back, and every disguise in which it says no."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import cast

from pipeline.errors import BadRequest, Forbidden, NotFound, PipelineError, QuotaExhausted, RateLimited, Unauthorised, Unavailable
from pipeline.http import retry_after
from pipeline.load.exchange import Exchange, Reply
from pipeline.protocols import Surroundings

PAGE = 100
"""Documents or books of one page, the most the API gives."""
ROWS = 200
"""Rows of one page of a data table, the most the API gives."""
SHORT_S = 5.0
"""Waits up to this long are sat out; longer ones end the scan until then."""
SILENT_S = 60.0
"""How long to wait after a 429 that names no time."""
SILENT_MOST = 3
"""Such answers in a row after which the day's quota is taken for used up."""
LONG_S = 3600.0
"""A wait from which on it is a quota rather than a rate."""
TRIES = 3
CHINA = timezone(timedelta(hours=8))
_TOKEN = "Give the source a token that is valid: `dujiang sources update NAME --token …`."

Row = Mapping[str, object]


class YuqueClient:
    """Typed answers of the API. Waits and limits are the surroundings'.

    Args:
        per_hour: requests an hour that the token may make.
        per_day: requests a day, 0 when no such limit is known.
    """

    def __init__(self, base_url: str, token: str, around: Surroundings, *, per_hour: int = 5000, per_day: int = 0) -> None:
        self._exchange = Exchange(f"{base_url.rstrip('/')}/api/v2", service="Yuque", headers={"x-auth-token": token})
        self._around = around
        self._per_hour, self._per_day = per_hour, per_day
        self._silent = 0

    def user(self) -> Row:
        """Whom the token belongs to; `type` is User or Group (a team's token)."""
        return _row(self._get("/user"))

    def groups(self, user_id: str) -> list[Row]:
        """Teams of a user. Nobody's teams are answered with 404."""
        try:
            return list(self._pages(f"/users/{user_id}/groups"))
        except NotFound:
            return []

    def books(self, owner: str, *, group: bool) -> Iterator[Row]:
        """Books of a user or team."""
        return self._pages(f"/{'groups' if group else 'users'}/{owner}/repos")

    def documents(self, book_id: str, offset: int, *, since: str = "", deleted: bool = False) -> tuple[list[Row], int]:
        """(one page of a book's documents, how many there are in all)."""
        params: dict[str, str | int] = {"offset": offset, "limit": PAGE}
        if since:
            params["changed_at_gte"] = since
        if deleted:
            params["deleted"] = "true"
        answer = self._get(f"/repos/{book_id}/docs", params)
        meta = answer.get("meta")
        rows = _rows(answer)
        total = cast("Row", meta).get("total") if isinstance(meta, dict) else None
        return rows, int(total) if isinstance(total, int) else offset + len(rows)

    def contents(self, book_id: str) -> list[Row]:
        """The table of contents, in order."""
        return _rows(self._get(f"/repos/{book_id}/toc"))

    def document(self, document_id: str, page: int = 1) -> dict[str, object]:
        """One document with its body; `page` counts the rows of a data table in hundreds twice over."""
        params: dict[str, str | int] = {"page": page, "page_size": ROWS} if page > 1 else {}
        return _row(self._get(f"/repos/docs/{document_id}", params))

    def _pages(self, path: str) -> Iterator[Row]:
        offset = 0
        while True:
            rows = _rows(self._get(path, {"offset": offset, "limit": PAGE}))
            yield from rows
            if len(rows) < PAGE:
                return
            offset += len(rows)

    def _get(self, path: str, params: Mapping[str, str | int] | None = None) -> dict[str, object]:
        """One answer. Short waits and passing failures are sat out here. Raises by what the API said."""
        failure: PipelineError | None = None
        for number in range(TRIES):
            self._around.check()
            try:
                return self._once(path, params)
            except RateLimited as error:
                failure, wait = error, error.after or SILENT_S
                if wait > SHORT_S:
                    raise
            except Unavailable as error:
                failure, wait = error, error.after or 2.0**number
                if wait > SHORT_S:
                    raise
            if number + 1 < TRIES:
                self._around.sleep(wait)
        assert failure is not None
        raise failure

    def _once(self, path: str, params: Mapping[str, str | int] | None) -> dict[str, object]:
        if self._per_day:
            self._daily()
        with self._around.acquire("api", rate=self._per_hour / 3600, burst=max(1.0, self._per_hour / 60)):
            reply = self._exchange.ask("GET", path, params=params)
        if reply.status == 429:
            raise self._limited(reply)
        self._silent = 0
        return _opened(reply)

    def _daily(self) -> None:
        """One call of today's: a bucket of the day's own that as good as never fills again."""
        now = self._around.now()
        day = datetime.fromtimestamp(now, CHINA).date().isoformat()
        try:
            with self._around.acquire(f"day.{day}", rate=self._per_day / 86400 / 100, burst=max(1.0, self._per_day - 1.0)):
                return
        except RateLimited as error:
            raise self._exhausted(_until_tomorrow(now)) from error

    def _exhausted(self, wait_s: float) -> QuotaExhausted:
        until = datetime.fromtimestamp(self._around.now() + wait_s, UTC)
        return QuotaExhausted("Yuque gives this token no more calls for now", until=until, code="quota_exhausted")

    def _limited(self, reply: Reply) -> PipelineError:
        wait = retry_after(reply.headers)
        if wait is None:
            self._silent += 1
            if self._silent >= SILENT_MOST:
                wait = _until_tomorrow(self._around.now())
                self._around.blocked("api", wait)
                return self._exhausted(wait)
            wait = SILENT_S
        self._around.blocked("api", wait)
        if wait >= LONG_S:
            return self._exhausted(wait)
        return RateLimited("Yuque answered 429", after=wait, scope="api")


def _until_tomorrow(now: float) -> float:
    """Seconds to the next midnight in China, where quotas of a day begin anew."""
    here = datetime.fromtimestamp(now, CHINA)
    return (here.replace(hour=0, minute=0, second=30, microsecond=0) + timedelta(days=1) - here).total_seconds()


def _opened(reply: Reply) -> dict[str, object]:
    status = reply.status
    if status == 401:
        raise Unauthorised("Yuque does not accept the token", hint=_TOKEN)
    if status == 403:
        raise Forbidden("Yuque does not let this token read it", hint="Give the token's owner access, or leave the book out.")
    if status in (404, 410):
        raise NotFound("Yuque knows no such item")
    if status >= 500 or status == 408:
        raise Unavailable(f"Yuque answered {status}", dependency=True, code="server_error")
    if not 200 <= status < 300:
        raise BadRequest(f"Yuque refused the request with {status}", code="refused")
    answer = reply.table("Yuque")
    if "data" not in answer:
        raise Unavailable("Yuque sent an answer without data", code="malformed_answer")
    return answer


def _rows(answer: Mapping[str, object]) -> list[Row]:
    found = answer["data"]
    if not isinstance(found, list):
        raise Unavailable("Yuque sent something else than a list", code="malformed_answer")
    return [cast("Row", row) for row in cast("list[object]", found) if isinstance(row, dict)]


def _row(answer: Mapping[str, object]) -> dict[str, object]:
    found = answer["data"]
    if not isinstance(found, dict) or not found:
        raise Unavailable("Yuque sent an empty document", code="malformed_answer")
    return cast("dict[str, object]", found)


def stamp(seconds: float) -> str:
    """The API's form of a moment: ``2026-05-01T08:00:00.000Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
