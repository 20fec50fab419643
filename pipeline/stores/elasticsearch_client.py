"""One connection to an Elasticsearch cluster: address, credentials, requests, and failures told in our own terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, NotRequired, TypeAlias, TypedDict, cast
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from pipeline.errors import BadRequest, BrokenContract, Conflict, Forbidden, NotFound, PipelineError, RateLimited, TooLarge, Unauthorised, Unavailable
from pipeline.protocols import Limiter, Unlimited

if TYPE_CHECKING:
    from elasticsearch import ApiError, Elasticsearch

Json: TypeAlias = Mapping[str, object]

SETTING_HINT = "Check that Elasticsearch runs and that DUJIANG_STORE_URL names it, then wait: it is tried again by itself."
BASE64_SINCE = (9, 3)
"""First server that takes a vector as base64 of big-endian float32 (elastic/elasticsearch#137072)."""


class SearchHit(TypedDict):
    """What is read of a hit. Which parts are there depends on the request; `sort` holds the score when it was sorted by."""

    _id: str
    _score: float
    _source: dict[str, object]
    fields: dict[str, list[object]]
    sort: list[object]


class Total(TypedDict):
    value: int


class SearchHits(TypedDict):
    hits: list[SearchHit]
    total: Total


class Buckets(TypedDict):
    buckets: list[Mapping[str, int]]


class SearchAnswer(TypedDict):
    """Of `_search`, and of each part of `_msearch`, where `error` and `status` may stand instead."""

    hits: SearchHits
    aggregations: Mapping[str, Buckets]
    pit_id: NotRequired[str]
    error: NotRequired[Mapping[str, object]]
    status: NotRequired[int]


class Found(TypedDict):
    """One record of `_mget`; all but the id only where `found`."""

    _id: str
    _seq_no: int
    _primary_term: int
    _source: dict[str, object]
    found: NotRequired[bool]
    error: NotRequired[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Address:
    """What a store URL says. Credentials never appear in `shown`."""

    hosts: tuple[str, ...]
    shown: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    ca_certs: str = ""


def address(url: str) -> Address:
    """Read ``elasticsearch+https://user:password@host:9200,host2:9200/prefix?ca_certs=/path``.

    An API key stands where the password does, with an empty user: ``elasticsearch+https://:KEY@host``.
    Raises BadRequest, which does not repeat the URL: it may hold a password.
    """
    parts = urlsplit(url.removeprefix("elasticsearch+"))
    userinfo, _, netloc = parts.netloc.rpartition("@")
    if parts.scheme not in {"http", "https"} or not netloc:
        raise BadRequest("DUJIANG_STORE_URL is not an Elasticsearch address", hint="Write elasticsearch+http(s)://host:9200.", code="bad_setting")
    port = 443 if parts.scheme == "https" else 9200
    path = parts.path.rstrip("/")
    hosts = [f"{parts.scheme}://{host if re.search(r':[0-9]+$', host) else f'{host}:{port}'}{path}" for host in netloc.split(",")]
    user, _, secret = (unquote(piece) for piece in userinfo.partition(":"))
    return Address(
        hosts=tuple(hosts),
        shown=", ".join(hosts),
        user=user,
        password=secret if user else "",
        api_key="" if user else secret,
        ca_certs=parse_qs(parts.query).get("ca_certs", [""])[0],
    )


class Client:
    """Sends requests and raises from our tree; never repeats a request by itself. Safe to use from several threads."""

    def __init__(self, url: str, *, timeout_s: float = 60.0, limiter: Limiter | None = None) -> None:
        self._limiter = limiter or Unlimited()
        self._address = address(url)
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._opened: Elasticsearch | None = None
        self._base64: bool | None = None

    @property
    def shown(self) -> str:
        """Where it connects to, without credentials."""
        return self._address.shown

    def call(self, method: str, path: str, body: Json | bytes | None = None, *, params: Mapping[str, str] | None = None) -> object:
        """One request; bytes are sent as lines of JSON. Returns the decoded answer.

        Raises Unavailable(dependency=True) when nothing answers, RateLimited, Unauthorised, Forbidden, NotFound,
        Conflict, TooLarge, and BrokenContract for a request that the server does not understand.
        """
        with self._limiter.request():
            return self._sent(method, path, body, params)

    def _sent(self, method: str, path: str, body: Json | bytes | None, params: Mapping[str, str] | None) -> object:
        import elastic_transport
        import elasticsearch

        lines = isinstance(body, bytes)
        content = body if lines or body is None else orjson.dumps(body)
        headers = {"accept": "application/json"}
        if content is not None:
            headers["content-type"] = "application/x-ndjson" if lines else "application/json"
        try:
            return self._client().perform_request(method, path, params=params, headers=headers, body=content).body
        except elasticsearch.UnsupportedProductError:
            raise BrokenContract(f"what answers at {self.shown} is not Elasticsearch", hint="Check DUJIANG_STORE_URL.") from None
        except elasticsearch.ApiError as error:
            raise self._failure(error, path) from None
        except elastic_transport.ConnectionTimeout:
            raise Unavailable(
                f"Elasticsearch at {self.shown} gave no answer within {self._timeout_s:g} s", dependency=True, hint=SETTING_HINT
            ) from None
        except (elastic_transport.TransportError, OSError) as error:
            raise Unavailable(
                f"Elasticsearch at {self.shown} cannot be reached ({type(error).__name__})", dependency=True, hint=SETTING_HINT
            ) from None

    def search(self, path: str, body: Json) -> SearchAnswer:
        """`_search` of the given path."""
        return cast("SearchAnswer", self.call("POST", path, body))

    def multi_search(self, index: str, bodies: list[Json]) -> list[SearchAnswer]:
        """`_msearch`, answers in order. Raises for the first part that failed."""
        lines = b"".join(b"{}\n" + orjson.dumps(body) + b"\n" for body in bodies)
        answers = cast("dict[str, list[SearchAnswer]]", self.call("POST", f"/{index}/_msearch", lines))["responses"]
        for answer in answers:
            if "error" in answer:
                raise self.failure(answer.get("status", 500), str(answer["error"].get("type", "")), f"/{index}/_msearch")
        return answers

    def multi_get(self, index: str, ids: list[str], *, fields: str = "") -> list[Found]:
        """`_mget` in real time, in the order of `ids`. Raises NotFound when the index is missing."""
        params = {"_source_includes": fields} if fields else None
        found = cast("dict[str, list[Found]]", self.call("POST", f"/{index}/_mget", {"ids": ids}, params=params))["docs"]
        for record in found:
            if "error" in record:
                kind = str(record["error"].get("type", ""))
                raise self.failure(404 if kind == "index_not_found_exception" else 503, kind, f"/{index}/_mget")
        return found

    @property
    def takes_base64(self) -> bool:
        """Whether every node takes vectors as base64; False where the nodes may not be asked."""
        if self._base64 is None:
            try:
                nodes = cast("dict[str, dict[str, dict[str, str]]]", self.call("GET", "/_nodes/http", params={"filter_path": "nodes.*.version"}))
                versions = [tuple(int(part) for part in node["version"].split(".")[:2]) for node in nodes["nodes"].values()]
                self._base64 = min(versions) >= BASE64_SINCE
            except (Forbidden, NotFound, BrokenContract):
                self._base64 = False
        return self._base64

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _client(self) -> Elasticsearch:
        with self._lock:
            if self._opened is None:
                from elastic_transport.client_utils import DEFAULT
                from elasticsearch import Elasticsearch
                from elasticsearch.serializer import OrjsonSerializer

                place = self._address
                self._opened = Elasticsearch(
                    list(place.hosts),
                    basic_auth=(place.user, place.password) if place.user else None,
                    api_key=place.api_key or None,
                    request_timeout=self._timeout_s,
                    max_retries=0,
                    retry_on_timeout=False,
                    retry_on_status=(),
                    serializers={"application/json": OrjsonSerializer()},
                    connections_per_node=16,
                    ca_certs=place.ca_certs or DEFAULT,
                )
            return self._opened

    def _failure(self, error: ApiError, path: str) -> PipelineError:
        body = cast("object", error.body)
        problem = cast("Json", body).get("error") if isinstance(body, dict) else None
        kind = str(cast("Json", problem).get("type", "")) if isinstance(problem, dict) else ""
        return self.failure(error.meta.status, kind, path)

    def failure(self, status: int, kind: str, path: str) -> PipelineError:
        """The error for a status and Elasticsearch's own type of error.

        Its reason is left out: it repeats field values, which are document content.
        """
        said = f"Elasticsearch at {self.shown} answered {status}{f' ({kind})' if kind else ''} to {path.split('?')[0]}"
        if kind == "cluster_block_exception":
            return Unavailable(said, dependency=True, hint="The index or cluster is blocked, mostly for a full disk: free space on the data nodes.")
        if kind == "resource_already_exists_exception":
            return Conflict(said)
        match status:
            case 401:
                return Unauthorised(said, hint="Check the user and password, or the API key, in DUJIANG_STORE_URL.")
            case 403:
                return Forbidden(said, hint="Give the account of DUJIANG_STORE_URL the right to create, read and write indices named dujiang-*.")
            case 404:
                return NotFound(said, hint="Create the collection, or check its name.")
            case 409:
                return Conflict(said)
            case 413:
                return TooLarge(said, hint="Split the document, or raise http.max_content_length of Elasticsearch.")
            case 429:
                return RateLimited(said, scope="elasticsearch")
            case _ if status >= 500:
                return Unavailable(said, dependency=True, hint=SETTING_HINT)
            case _:
                return BrokenContract(said, hint="Use Elasticsearch 8.19 or 9.")
