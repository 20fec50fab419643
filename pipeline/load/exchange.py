"""One request to a source's API and what came back, uninterpreted: every vendor hides its errors in another place.

Never retries, never follows a redirect, never logs an address with its query. Credentials travel in headers to one host only.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pipeline.errors import Malformed, TooLarge, Unavailable
from pipeline.http import check_address, is_loopback, quiet, reach_hint, shown

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES = 64_000_000
"""Largest answer of an API call; downloads name their own bound."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers (look-up in lower case) and body of one answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def table(self, service: str) -> dict[str, object]:
        """The body as a JSON object. Raises Unavailable for anything else, which gateways send with status 200 too."""
        import orjson

        try:
            found: object = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise Unavailable(f"{service} sent an answer that is not JSON (status {self.status})", code="malformed_answer")
        return cast("dict[str, object]", found)


def kept_bytes(key: str, content: Mapping[str, object]) -> bytes:
    """An object's content as JSON, equal for equal content. Raises Malformed where it is nested deeper than JSON is written (254 levels)."""
    import orjson

    try:
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise Malformed(
            f"{key} is nested too deep to be kept", hint="Look at it at its source: people write no such documents.", code="too_deep"
        ) from error


class Exchange:
    """Kept connections to one host. Safe for threads, opened at first use, anew after a fork.

    Args:
        base_url: of the API, without a query.
        service: what messages call the other side.
        headers: sent with every request to `base_url`, and to no other host.
        timeout_s: for connecting, and for the whole of one answer.
    """

    def __init__(self, base_url: str, *, service: str, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> None:
        check_address(base_url, "")
        self.base_url = base_url.rstrip("/")
        self.service = service
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._opened: httpx.Client | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"Exchange({shown(self.base_url)!r})"

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = ANSWER_BYTES,
    ) -> Reply:
        """Send one request below `base_url`. Raises Unavailable when nobody answers, TooLarge beyond `max_bytes`; no status is an error here."""
        import httpx
        import orjson

        url = f"{self.base_url}/{path.lstrip('/')}"
        content = None if body is None else orjson.dumps(body)
        sent = {**self._headers, **(headers or {}), **({"content-type": "application/json; charset=utf-8"} if content is not None else {})}
        until = time.monotonic() + self._timeout_s
        try:
            with self._client().stream(method, url, params=dict(params) if params else None, content=content, headers=sent) as response:
                pieces: list[bytes] = []
                size = 0
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    size += len(piece)
                    if size > max_bytes:
                        raise TooLarge(f"{self.service} sent more than {max_bytes:,} bytes", hint="Raise DUJIANG_MAX_FILE_MB, or leave the item out.")
                    if time.monotonic() > until:
                        raise self._away(f"did not finish its answer within {self._timeout_s:g} s", "timeout")
                return Reply(response.status_code, response.headers, b"".join(pieces))
        except httpx.TimeoutException:
            raise self._away(f"did not answer within {self._timeout_s:g} s", "timeout") from None
        except httpx.ConnectError:
            raise self._away("could not be reached", "unreachable") from None
        except httpx.DecodingError:
            raise Unavailable(f"{self.service} sent an answer whose compression is broken", code="malformed_answer") from None
        except httpx.TransportError:
            raise self._away("broke off the connection", "connection_lost") from None

    def close(self) -> None:
        """Close kept connections; the next call opens new ones."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _away(self, what: str, code: str) -> Unavailable:
        return Unavailable(f"{self.service} {what}", dependency=True, code=code, hint=reach_hint(shown(self.base_url), ""))

    def _client(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._opened is None or self._pid != os.getpid():
                quiet("httpx", "httpcore")
                self._opened = httpx.Client(
                    timeout=httpx.Timeout(self._timeout_s, connect=min(10.0, self._timeout_s)),
                    follow_redirects=False,
                    trust_env=not is_loopback(self.base_url),
                    headers={"user-agent": "dujiang"},
                )
                self._pid = os.getpid()
            return self._opened
