"""One request for one address and its answer: bounded in time and size, compressed or not; redirects are answers like others.

Never a proxy of the environment: it would resolve names by itself, behind the guard's back.
"""

from __future__ import annotations

import os
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import certifi
import httpcore

from pipeline.errors import Malformed, TooLarge, Unavailable
from pipeline.http import quiet
from pipeline.load.web.guard import Backend, Guard

STEP_S = 20.0
"""Longest silence within an answer."""
PIECE = 65_536
AGENT = "dujiang"

_REPORT = "Report it to whoever runs the site."

Bound = Callable[[int, Mapping[str, str]], int]
"""(status, headers) → most bytes of the body that are wanted; 0: none are read."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers (names in lower case) and body, its compression undone."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float = 0.0

    @property
    def media_type(self) -> str:
        """Of the content-type header, lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """Of the content-type header, as sent; a hint only."""
        for part in self.headers.get("content-type", "").split(";")[1:]:
            name, _, value = part.partition("=")
            if name.strip().lower() == "charset":
                return value.strip().strip("\"'")[:40]
        return ""

    @property
    def validators(self) -> dict[str, str]:
        """What a later conditional request needs: ``etag``, ``last_modified``."""
        named = {"etag": self.headers.get("etag", ""), "last_modified": self.headers.get("last-modified", "")}
        return {name: value for name, value in named.items() if value and len(value) <= 500 and value.isprintable()}


def conditional(validators: Mapping[str, object]) -> dict[str, str]:
    """Request headers that ask for the body only where it has changed."""
    sent: dict[str, str] = {}
    etag, modified = validators.get("etag"), validators.get("last_modified")
    if isinstance(etag, str) and etag:
        sent["if-none-match"] = etag
    if isinstance(modified, str) and modified:
        sent["if-modified-since"] = modified
    return sent


class Fetcher:
    """Kept connections, opened under a guard. Used by one thread, and anew after a fork.

    Args:
        headers: sent to the origins (``https://host:port``) they are given for, and to no other.
    """

    def __init__(self, guard: Guard, *, agent: str = AGENT, headers: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._guard, self._agent = guard, agent
        self._secret = dict(headers or {})
        self._pool: httpcore.ConnectionPool | None = None
        self._backend = Backend(guard)
        self._pid = 0

    def ask(
        self, url: str, *, bound: Bound, headers: Mapping[str, str] | None = None, method: str = "GET", deadline_s: float = 60.0, cut: bool = False
    ) -> Reply:
        """The answer, whatever its status; with `cut` only the beginning of a body that is larger than what is wanted.

        Raises Unavailable when nobody answers in time, TooLarge beyond what `bound` allows, Malformed when its compression is broken, Forbidden
        when the address may not be asked.
        """
        sent: dict[str, str] = {"user-agent": self._agent, "accept": "text/html,application/xhtml+xml,*/*;q=0.8", "accept-encoding": "gzip, deflate"}
        sent |= dict(self._secret.get(origin(url)) or {}) | dict(headers or {})
        pool, started = self._opened(), time.monotonic()
        self._backend.until = started + deadline_s
        host = urlsplit(url).hostname or ""
        extensions = {"timeout": {"connect": 10.0, "read": STEP_S, "write": STEP_S, "pool": 10.0}}
        try:
            with pool.stream(
                method, url, headers=[(k.encode(), v.encode("latin-1", "replace")) for k, v in sent.items()], extensions=extensions
            ) as got:
                found = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in got.headers}
                most = bound(got.status, found) if method != "HEAD" else 0
                body = b"".join(_body(got.iter_stream(), found.get("content-encoding", ""), most, host, cut or got.status >= 300)) if most else b""
                return Reply(got.status, found, body, time.monotonic() - started)
        except httpcore.TimeoutException:
            raise Unavailable(
                f"{host} did not finish its answer within {min(deadline_s, time.monotonic() - started + 1):.0f} s", code="timeout"
            ) from None
        except httpcore.ConnectError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                hint = "Set SSL_CERT_FILE to the file with your authority's certificate."
                raise Unavailable(f"{host} shows a certificate that is not trusted here", code="bad_certificate", hint=hint) from None
            raise Unavailable(f"{host} could not be reached", code="unreachable", hint="Check the address.") from None
        except (httpcore.ProtocolError, httpcore.NetworkError, httpcore.UnsupportedProtocol):
            raise Unavailable(f"{host} broke off its answer", code="connection_lost") from None

    def close(self) -> None:
        """Close kept connections; the next request opens new ones."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _opened(self) -> httpcore.ConnectionPool:
        if self._pool is None or self._pid != os.getpid():
            quiet("httpcore")
            self._backend, self._pid = Backend(self._guard), os.getpid()
            trust = ssl.create_default_context()
            trust.load_verify_locations(certifi.where())
            self._pool = httpcore.ConnectionPool(
                trust, max_connections=8, max_keepalive_connections=4, keepalive_expiry=20.0, network_backend=self._backend
            )
        return self._pool


def origin(url: str) -> str:
    """``https://host:port`` of an address, the port always named."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = (parts.hostname or "").lower()
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _body(pieces: Iterator[bytes], encoding: str, most: int, host: str, cut: bool) -> Iterator[bytes]:
    """The body, its compression undone bit by bit: a small answer cannot swell beyond `most`. With `cut` it ends there."""
    how, size = encoding.strip().lower(), 0
    if how not in {"", "identity", "gzip", "x-gzip", "deflate"}:
        raise Malformed(f"{host} sent an answer in the compression {how[:20]!r}, which was not asked for", code="bad_compression", hint=_REPORT)
    for plain, sent in _packed(pieces, how, host) if how not in {"", "identity"} else ((piece, 0) for piece in pieces):
        size += len(plain)
        if max(size, sent) > most and not cut:
            raise _too_large(host, most)
        yield plain
        if size > most:
            return


def _packed(pieces: Iterator[bytes], how: str, host: str) -> Iterator[tuple[bytes, int]]:
    """(a bit of the body, bytes that were sent so far)."""
    opened, sent = zlib.decompressobj(47), 0
    try:
        for piece in pieces:
            if not sent and how == "deflate" and piece and piece[0] & 0x0F != 8:
                opened = zlib.decompressobj(-15)  # without zlib's header, as some servers understand the standard
            sent += len(piece)
            while piece:
                plain = opened.decompress(piece, PIECE)
                piece = opened.unconsumed_tail
                yield plain, sent
    except zlib.error:
        raise Malformed(f"{host} sent an answer whose compression is broken", code="bad_compression", hint=_REPORT) from None
    if sent and not opened.eof:
        raise Unavailable(f"{host} broke off its answer", code="connection_lost")


def _too_large(host: str, most: int) -> TooLarge:
    return TooLarge(f"{host} sent more than {most / 1e6:,.0f} MB", hint="Leave the page out with --exclude, or raise DUJIANG_MAX_FILE_MB.")
