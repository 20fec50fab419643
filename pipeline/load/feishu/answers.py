"""What an answer of Feishu's API says: its code decides and never its status alone, since each route hides its errors in another one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import orjson

from pipeline.errors import BadRequest, Forbidden, NotFound, PipelineError, RateLimited, TooLarge, Unauthorised, Unavailable
from pipeline.http import retry_after
from pipeline.load.exchange import Reply

Json = Mapping[str, object]

NOTHING: Json = MappingProxyType({})
SERVICE = "Feishu"
RATE = frozenset({99991400, 11232, 1254290, 1254291, 90217})
"""Rate limits of the gateway, of messages, of bases (two) and of sheets. The first comes with status 429, 400 or 200."""
EXPIRED = frozenset({99991661, 99991663, 99991664, 99991668, 99991671, 99991677, 1061005})
REFUSED = frozenset({99991543, 99991662, 99991673, 10003, 10012, 10014, 10015})
SCOPES = frozenset({99991672, 99991676, 99991679})
FORBIDDEN = frozenset({1061004, 1061073, 1770032, 970003, 131006, 91403, 1310213, 1254302, 1254303, 1069902})
GONE = frozenset({1061003, 1061007, 1770002, 1770003, 131005, 91402, 1254040, 1254041, 1310214, 1310249, 1069914})
BUSY = frozenset({1061045, 1770020, 1663, 1061006, 1061001, 1254607, 1254036, 90235})
"""Contention, copies in progress, internal errors and timeouts of the other side: they pass."""
WRONG = frozenset({90202, 90215, 1061002, 1770001, 1064510, 1064511})
TOO_LARGE = frozenset({90221, 1770033})
BAD_PAGE = frozenset({1770022, 1254030, 131002})
NONE = -1
"""In place of a code where the answer has none."""
SILENT_S = 1.0
"""How long to wait after a rate limit that names no time."""
_SECRET = "Give valid ones: `dujiang sources update NAME --app-id … --app-secret …`, and check that the app is enabled and published."


def expired(error: PipelineError) -> bool:
    """Whether a new access token and the same request once more may help."""
    return isinstance(error, Unauthorised) and error.code == "token_expired"


def opened(reply: Reply) -> Json:
    """The whole answer when its code is 0. Raises by what the code says."""
    content = _object(reply)
    if content is None:
        raise _bare(reply)
    code = _number(content.get("code"))
    if code == 0 and reply.status < 400:
        return content
    raise failure(code, reply, content)


def download(reply: Reply) -> bytes:
    """The bytes of a download. Raises by what an answer in their place says; that may have no body at all."""
    if reply.status in (200, 206):
        # A refusal with status 200 is JSON with a code, which no file that is called JSON has by chance with a message beside it.
        content = _object(reply) if reply.headers.get("content-type", "").startswith("application/json") else None
        if content is None or "msg" not in content or not _number(content.get("code")):
            return reply.body
        raise failure(_number(content.get("code")), reply, content)
    content = _object(reply)
    raise _bare(reply) if content is None else failure(_number(content.get("code")), reply, content)


def failure(code: int, reply: Reply, content: Json) -> PipelineError:
    """The error that a code means."""
    if code in RATE or reply.status == 429:
        return limited(reply)
    for codes, meaning in _MEANINGS:
        if code in codes:
            return meaning(code, content)
    return _unlisted(code, reply)


def _expired(code: int, _content: Json) -> PipelineError:
    return Unauthorised(f"{SERVICE} does not take the access token ({code})", hint=_SECRET, code="token_expired")


def _refused(code: int, _content: Json) -> PipelineError:
    return Unauthorised(f"{SERVICE} refuses the app's credentials ({code})", hint=_SECRET)


def _scope(_code: int, content: Json) -> PipelineError:
    named = scopes(content)
    return Forbidden(
        f"the app lacks a scope{': ' if named else ''}{', '.join(named)}",
        hint="Add it under Permissions & Scopes in the developer console, and publish a version of the app.",
        code="missing_scope",
    )


def _forbidden(code: int, _content: Json) -> PipelineError:
    return Forbidden(f"{SERVICE} does not let the app read it ({code})", hint="Share it with the app, or with a group that holds the app.")


def _gone(code: int, _content: Json) -> PipelineError:
    return NotFound(f"{SERVICE} has no such item ({code})")


def _stale(code: int, _content: Json) -> PipelineError:
    return BadRequest(f"{SERVICE} does not take the page token ({code})", code="bad_page")


def _busy(code: int, _content: Json) -> PipelineError:
    return Unavailable(f"{SERVICE} failed for a moment ({code})", code="server_error")


def _wrong(code: int, _content: Json) -> PipelineError:
    return BadRequest(f"{SERVICE} refused the request ({code})", code="refused")


def _large(code: int, _content: Json) -> PipelineError:
    return TooLarge(f"{SERVICE} has more to say than fits into one answer ({code})", hint="Split it.")


_MEANINGS = (
    (EXPIRED, _expired),
    (REFUSED, _refused),
    (SCOPES, _scope),
    (FORBIDDEN, _forbidden),
    (GONE, _gone),
    (BAD_PAGE, _stale),
    (BUSY, _busy),
    (WRONG, _wrong),
    (TOO_LARGE, _large),
)


def _unlisted(code: int, reply: Reply) -> PipelineError:
    """A code that we do not know may pass, unless the status says that it will not."""
    if reply.status >= 500 or reply.status in (401, 403, 404, 410):
        return _bare(reply)
    if reply.status >= 400:
        return BadRequest(f"{SERVICE} refused the request ({code})", code="refused")
    if code == NONE:
        return Unavailable(f"{SERVICE} sent an answer without a code", code="malformed_answer")
    return Unavailable(f"{SERVICE} answered with the code {code}, which is in no list of ours", code="unknown_code")


def limited(reply: Reply) -> RateLimited:
    """Its wait is what the gateway says, in either header."""
    wait = retry_after(reply.headers)
    try:
        wait = float(reply.headers.get("x-ogw-ratelimit-reset", "")) if wait is None else wait
    except ValueError:
        wait = None
    return RateLimited(f"{SERVICE} takes fewer requests than we send", after=max(0.05, wait if wait is not None else SILENT_S))


def scopes(content: Json) -> list[str]:
    """Names of the scopes that an answer misses."""
    violations = tables(table(content.get("error")).get("permission_violations"))
    return sorted({str(row.get("subject") or "") for row in violations} - {""})


def table(value: object) -> Json:
    """An object; an empty one for anything else."""
    return cast("Json", value) if isinstance(value, dict) else NOTHING


def tables(value: object) -> list[Json]:
    """The objects of a list; none for anything else."""
    return [cast("Json", row) for row in cast("list[object]", value) if isinstance(row, dict)] if isinstance(value, list) else []


def _bare(reply: Reply) -> PipelineError:
    """An answer without JSON: from a gateway, or a refused download."""
    status = reply.status
    if status == 429:
        return limited(reply)
    if status == 401:
        return Unauthorised(f"{SERVICE} does not take the access token (401)", hint=_SECRET, code="token_expired")
    if status == 403:
        return Forbidden(f"{SERVICE} does not let the app read it (403)", hint="Share it with the app, or allow its download.")
    if status in (404, 410):
        return NotFound(f"{SERVICE} has no such item ({status})")
    if status >= 500:
        return Unavailable(f"{SERVICE} failed for a moment ({status})", code="server_error")
    return Unavailable(f"{SERVICE} sent an answer that is not JSON (status {status})", code="malformed_answer")


def _object(reply: Reply) -> Json | None:
    try:
        found: object = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return None
    return cast("Json", found) if isinstance(found, dict) else None


def _number(value: object) -> int:
    """A code; an answer without one is none of the API's."""
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else NONE
