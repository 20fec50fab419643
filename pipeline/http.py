"""One guarded client for every model server and API that is reached over HTTP.

It keeps connections, bounds time and size, turns every outcome into an error of the tree, and never
retries: the engine does. Messages name the service, the address without its credentials, and the
provider's own error code where that is a plain word; never a body, a key or a query string.

Proxies (``HTTPS_PROXY``, ``NO_PROXY``) and certificates (``SSL_CERT_FILE``) of the environment are
honoured for other machines, as every tool does; for loopback targets the environment is ignored.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from pipeline.errors import (
    BadRequest,
    BrokenContract,
    Conflict,
    Forbidden,
    NotFound,
    PipelineError,
    QuotaExhausted,
    RateLimited,
    TooLarge,
    Unauthorised,
    Unavailable,
)

if TYPE_CHECKING:
    import httpx

MAX_BYTES = 256 * 1024 * 1024
"""Largest answer that is read: 2,048 vectors of 3,072 numbers written as text need 75 MB."""

_QUOTA = frozenset(
    "insufficient_quota insufficient_balance billing_hard_limit_reached billing_not_active exceeded_current_quota_error"
    " quota_exceeded quotaexceeded accountoverdueerror arrearage 1113 30001".split()
)
"""Codes by which providers say "no money left" (OpenAI, DeepSeek, Moonshot, Volcengine, DashScope, Zhipu, SiliconFlow), lower case."""

_CERTIFICATE = "Set SSL_CERT_FILE to the file with your authority's certificate."
_CHECK_MODEL = "Check the model's name and {0}_BASE_URL, which usually ends in /v1."
_TOO_LONG = frozenset({"context_length_exceeded", "string_above_max_length", "request_too_large"})
_PLAIN = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_REFUSALS: Mapping[int, tuple[type[Unauthorised | Forbidden | NotFound | Conflict], str]] = {
    401: (Unauthorised, "Check {0}_API_KEY."),
    403: (Forbidden, "Use a key that may call this model: {0}_API_KEY."),
    404: (NotFound, _CHECK_MODEL),
    405: (NotFound, _CHECK_MODEL),
    409: (Conflict, ""),
    410: (NotFound, _CHECK_MODEL),
}
_COUNTED = ("requests", "tokens", "input-tokens", "output-tokens")
_RESETS = (
    *((f"x-ratelimit-reset{kind}", f"x-ratelimit-remaining{kind}") for kind in ("-requests", "-tokens", "")),
    *((f"anthropic-ratelimit-{kind}-reset", f"anthropic-ratelimit-{kind}-remaining") for kind in _COUNTED),
    ("ratelimit-reset", "ratelimit-remaining"),
)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_S: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def shown(url: str) -> str:
    """The address as it may appear in messages: no user, password, query or fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def quiet(*loggers: str) -> None:
    """Raise libraries' loggers to WARNING where nobody has set a level: below it they write addresses with their query, or bodies."""
    for name in loggers:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def is_loopback(url: str) -> bool:
    """True for localhost, 127.0.0.0/8 and ::1."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(url: str, setting: str) -> str:
    """`url` itself. Raises BadRequest, without quoting it, unless it is a whole http:// or https:// address."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        name = f"{setting}_BASE_URL" if setting else "the address"
        raise BadRequest(f"{name} must be an http:// or https:// address", hint=f"Correct {name}.", code="bad_setting")
    return url


class Client:
    """A pool of kept connections to one base URL; safe to share by threads, opened at first use, anew after a fork.

    Args:
        base_url: ``https://host/v1``; user and password in it become basic authentication when there is no key;
            its query string (``?api-version=…``) is sent with every request.
        api_key: sent as ``Authorization: Bearer``, or bare under `key_header` where a provider wants that.
        timeout_s: for the whole answer of `post_json` and `get`; between two pieces for `stream_lines`.
        headers: sent with every request.
        transport: replaces the network, for tests.
        service: what messages call the other side, e.g. ``openai``; the address when empty.
        setting: prefix of the environment variables that hints name, e.g. ``DUJIANG_EMBEDDER``.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        timeout_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        service: str = "",
        setting: str = "",
        key_header: str = "",
    ) -> None:
        parts = urlsplit(check_address(base_url, setting))
        self.address = shown(base_url)
        self.service = service or self.address
        self.setting = setting
        self._base = self.address
        self._query = parts.query
        self._timeout_s = timeout_s
        self._transport = transport
        self._headers = {"accept-encoding": "identity" if is_loopback(base_url) else "gzip", "user-agent": "dujiang", **(headers or {})}
        self._secrets = tuple(filter(None, (api_key, unquote(parts.password or ""))))
        self._auth: tuple[str, str] | None = None
        if api_key and key_header:
            self._headers[key_header] = api_key
        elif api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        elif parts.username:
            self._auth = (unquote(parts.username), unquote(parts.password or ""))
        self._lock = threading.Lock()
        self._opened: httpx.Client | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    def post_json(self, path: str, body: bytes | Mapping[str, object]) -> bytes:
        """Send JSON, give back the answer's bytes. Raises by status; see `failure`."""
        return self._exchange("POST", path, _encode(body))

    def get(self, path: str) -> bytes:
        """The answer's bytes. Raises by status; see `failure`."""
        return self._exchange("GET", path, None)

    def stream_lines(self, path: str, body: bytes | Mapping[str, object]) -> Iterator[bytes]:
        """Send JSON and yield the answer line by line, without line ends, as it arrives. Closing the iterator ends the request."""
        with self._answer("POST", path, _encode(body)) as response:
            rest = b""
            for piece in response.iter_bytes():
                lines = (rest + piece).split(b"\n")
                rest = lines.pop()
                if len(rest) > MAX_BYTES:
                    raise self._too_big()
                for line in lines:
                    yield line.removesuffix(b"\r")
            if rest:
                yield rest

    def close(self) -> None:
        """Close kept connections; the next call opens new ones."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _exchange(self, method: str, path: str, body: bytes | None) -> bytes:
        until = time.monotonic() + self._timeout_s
        with self._answer(method, path, body) as response:
            pieces: list[bytes] = []
            size = 0
            for piece in response.iter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    raise self._too_big()
                if time.monotonic() > until:
                    raise self._unavailable(f"did not finish its answer within {self._timeout_s:g} s", "timeout")
            return b"".join(pieces)

    @contextmanager
    def _answer(self, method: str, path: str, body: bytes | None) -> Generator[httpx.Response]:
        """A good answer, not read yet; everything else is raised, and errors while it is being read as well."""
        import httpx

        url = f"{self._base}/{path.lstrip('/')}" if path else self._base
        if self._query:
            url = f"{url}?{self._query}"
        headers = {"content-type": "application/json"} if body is not None else None
        try:
            with self._client().stream(method, url, content=body, headers=headers) as response:
                if not 200 <= response.status_code < 300:
                    raise self._refused(response)
                yield response
        except httpx.TimeoutException as error:
            what = "could not be reached" if isinstance(error, httpx.ConnectTimeout) else "did not answer"
            raise self._unavailable(f"{what} within {self._timeout_s:g} s", "timeout") from None
        except httpx.ConnectError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Unavailable(f"{self._name()} shows a certificate that is not trusted here", dependency=True, hint=_CERTIFICATE) from None
            raise self._unavailable("could not be reached", "unreachable") from None
        except httpx.ProxyError:
            raise self._unavailable("could not be reached through the proxy of the environment", "unreachable") from None
        except httpx.DecodingError:
            raise BrokenContract(f"{self._name()} sent an answer whose compression is broken") from None
        except httpx.TransportError:
            raise self._unavailable("broke off the connection", "connection_lost") from None

    def _client(self) -> httpx.Client:
        opened = self._opened
        if opened is not None and self._pid == os.getpid():
            return opened
        with self._lock:
            if self._opened is None or self._pid != os.getpid():
                self._opened, self._pid = self._open(), os.getpid()
            return self._opened

    def _open(self) -> httpx.Client:
        import httpx

        quiet("httpx", "httpcore")
        return httpx.Client(
            headers=self._headers,
            auth=self._auth,
            timeout=httpx.Timeout(self._timeout_s, connect=min(10.0, self._timeout_s)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0),
            follow_redirects=False,
            trust_env=not is_loopback(self._base),
            # certificates take 20 ms to read, and plain HTTP never looks at them
            verify=self._base.startswith("https:"),
            transport=self._transport,
        )

    def _name(self) -> str:
        return self.service if self.service == self.address else f"{self.service} at {self.address}"

    def _refused(self, response: httpx.Response) -> PipelineError:
        body = b""
        for piece in response.iter_bytes():
            body += piece
            if len(body) > 65536:
                break
        code = error_code(body)
        if any(secret in code for secret in self._secrets):
            code = ""
        return failure(response.status_code, response.headers, code=code, service=self._name(), setting=self.setting)

    def _unavailable(self, what: str, code: str) -> Unavailable:
        return Unavailable(f"{self._name()} {what}", dependency=True, code=code, hint=reach_hint(self.address, self.setting))

    def _too_big(self) -> TooLarge:
        return TooLarge(f"{self._name()} sent an answer of more than {MAX_BYTES // 2**20} MB", hint="Ask for less at once.")


def reach_hint(address: str, setting: str) -> str:
    """What to do when nobody answers at `address`."""
    return f"Start the server at {address}, or correct {setting}_BASE_URL." if setting else f"Start the server at {address}."


def error_code(body: bytes) -> str:
    """The provider's code out of an error body, or its type; empty unless it is a plain word, which carries no content."""
    import orjson

    try:
        found: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    return error_word(found)


def error_word(found: object) -> str:
    """`error_code` of a decoded body: ``{"error": {"code", "type"}}`` and the flat forms ``{"code"}``, ``{"type"}``."""
    if not isinstance(found, dict):
        return ""
    table = cast("dict[str, object]", found)
    inner = table.get("error")
    places = [cast("dict[str, object]", inner), table] if isinstance(inner, dict) else [table]
    for place in places:
        for key in ("code", "type"):
            word = place.get(key)
            text = str(word) if isinstance(word, str | int) and not isinstance(word, bool) else ""
            if _PLAIN.fullmatch(text):
                return text
    return ""


def failure(status: int, headers: Mapping[str, str], *, code: str = "", service: str, setting: str = "") -> PipelineError:
    """The error of the tree for an HTTP status that is not 2xx.

    Args:
        headers: of the answer, with lower-case look-up; Retry-After and x-ratelimit-reset-* are read.
        code: the provider's error code (`error_code`).
        service: what the message calls the other side.
        setting: prefix of the variables that the hint names.
    """
    said = f"{service} answered {status}" + (f" ({code})" if code else "")
    if code.lower() in _QUOTA or status == 402:
        return QuotaExhausted(said, code="insufficient_quota")
    if status == 429:
        return RateLimited(said, after=retry_after(headers), scope=service)
    if status >= 500 or status in {408, 425}:
        return Unavailable(said, after=retry_after(headers), dependency=True, code="server_error")
    if status == 413 or code.lower() in _TOO_LONG:
        return TooLarge(said, hint="Send smaller documents or chunks.")
    if 300 <= status < 400:
        return NotFound(f"{said}: it has moved", hint=f"Correct {setting}_BASE_URL." if setting else "", code="moved")
    kind, hint = _REFUSALS.get(status, (BadRequest, "Check the model's name and options under {0}."))
    return kind(said, hint=hint.format(setting) if setting else "")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, or None when the answer does not say.

    Retry-After as seconds or as an HTTP date (counted from the server's own Date, so that clocks may differ),
    else retry-after-ms, else the longest reset among those whose remainder is 0, or the shortest of all.
    """
    stated = headers.get("retry-after", "").strip()
    if stated:
        return _seconds(stated) if _seconds(stated) is not None else _until(stated, headers.get("date", ""))
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    spent, every = list[float](), list[float]()
    for reset, remaining in _RESETS:
        wait = _reset(headers.get(reset, "").strip())
        if wait is not None:
            every.append(wait)
            if headers.get(remaining, "").strip() in {"0", "0.0"}:
                spent.append(wait)
    return max(spent) if spent else min(every, default=None)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return max(0.0, value) if isfinite(value) else None


def _until(date: str, now: str) -> float | None:
    moment = _date(date)
    if moment is None:
        return None
    return max(0.0, (moment - (_date(now) or datetime.now(UTC))).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _reset(text: str) -> float | None:
    """Delay in ``6m0s``, ``120ms``, seconds, or a moment: an epoch in seconds or milliseconds, RFC 3339."""
    value = _seconds(text)
    if value is None and _MOMENT.match(text):
        return max(0.0, (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds())
    if value is None:
        pieces = _SPAN.findall(text)
        return sum(float(number) * _UNIT_S[unit] for number, unit in pieces) if pieces else None
    if value > 1e9:
        return max(0.0, (value / 1000 if value > 1e12 else value) - time.time())
    return value


def _encode(body: bytes | Mapping[str, object]) -> bytes:
    if isinstance(body, bytes):
        return body
    import orjson

    return orjson.dumps(body)
