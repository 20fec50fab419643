"""Packs in an S3-compatible store: AWS, MinIO, Ceph, R2 and others. Needs the extra ``s3``."""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from pipeline.contracts import Span
from pipeline.errors import BadRequest, NotFound, Rejected, Unauthorised, Unavailable, Unsupported
from workers.artifacts.local import missing

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Store

    from pipeline.settings import Settings

AT_ONCE = 1000
"""Packs of one request to delete."""
_KEYS = "Check DUJIANG_ARTIFACTS_ACCESS_KEY and DUJIANG_ARTIFACTS_SECRET_KEY, and what they may do."
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_REFUSALS = frozenset({"SignatureDoesNotMatch", "InvalidAccessKeyId", "AccessDenied", "ExpiredToken", "InvalidToken", "XAdminUserNotFound"})
_ROLES = "169.254.169.254"
"""Where a machine of AWS is asked for its role when no keys are given; elsewhere nobody answers."""
_FAULTS: Mapping[str, type[Rejected]] = {"no_bucket": NotFound, "artifacts_refused": Unauthorised}


class _BeyondEnd(Exception):
    """A range that begins after the end of its pack."""


class Bucket:
    """A `Shelf` in a bucket below a prefix. A write is one request, so a pack is there whole or not at all."""

    distant = True

    def __init__(self, bucket: str, prefix: str, settings: Settings) -> None:
        try:
            import obstore
        except ModuleNotFoundError as error:
            hint = "pip install 'dujiang[s3]'"
            raise Unsupported("artifacts in S3 need the package 'obstore', which is not installed", hint=hint, code="missing_extra") from error
        if bool(settings.artifacts_access_key) != bool(settings.artifacts_secret_key):
            raise BadRequest("only one half of the S3 credentials is set", hint=_KEYS, code="bad_setting")
        self.where = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._settings, self._obstore = settings, obstore
        self._lock = threading.Lock()
        self._made: tuple[int, S3Store] | None = None

    def put(self, pack: str, parts: Sequence[bytes]) -> None:
        with self._asking(pack) as store:
            # In parts, it could be left half done, and what S3 then keeps is paid for and never listed.
            self._obstore.put(store, self._prefix + pack, b"".join(parts), use_multipart=False)

    def get(self, pack: str, spans: Sequence[Span]) -> list[bytes]:
        if not spans:
            return []
        path = self._prefix + pack
        try:
            with self._asking(pack) as store:
                found = self._obstore.get_ranges(store, path, starts=[start for start, _ in spans], ends=[end for _, end in spans])
                return [bytes(piece) for piece in found]
        except _BeyondEnd:
            # One range beyond the end refuses them all: what is there is read, and whoever asked says what is missing.
            with self._asking(pack) as store:
                whole = bytes(self._obstore.get(store, path).bytes())
            return [whole[start:end] for start, end in spans]

    def packs(self) -> Iterator[tuple[str, float, int]]:
        with self._asking("") as store:
            stream = self._obstore.list(store, prefix=self._prefix or None)
        while True:
            with self._asking(""):
                part = next(stream, None)
            if part is None:
                return
            for found in part:
                name = found["path"].removeprefix(self._prefix)
                if name.endswith(".pack"):
                    yield name, found["last_modified"].timestamp(), found["size"]

    def sweep(self, before: float) -> int:
        """A write is one request here: nothing is left half done."""
        return 0

    def remove(self, packs: Iterable[str]) -> None:
        names = [self._prefix + pack for pack in packs]
        for start in range(0, len(names), AT_ONCE):
            try:
                with self._asking("") as store:
                    self._obstore.delete(store, names[start : start + AT_ONCE])
            except NotFound:
                continue

    def ping(self) -> None:
        with self._asking("") as store:
            next(self._obstore.list(store, prefix=f"{self._prefix}check/"), None)

    def check(self) -> None:
        probe = f"check/{secrets.token_hex(8)}.pack"
        try:
            self.ping()
            self.put(probe, [b"0"])
            self.remove([probe])
        except Unavailable as error:
            # While documents are under way these are waited out; whoever starts, or asks, is told whose fault it is.
            kind = _FAULTS.get(error.code)
            raise kind(error.detail, hint=error.hint, code=error.code) if kind else error from None

    def _store(self) -> S3Store:
        """Raises RuntimeError after a fork: the library's threads do not survive one, and whoever asked would wait for ever."""
        with self._lock:
            if self._made is None:
                self._made = (os.getpid(), self._open())
            if self._made[0] != os.getpid():
                raise RuntimeError("artifacts in S3 were used before this process was forked; open them in each process")
            return self._made[1]

    def _open(self) -> S3Store:
        from obstore.store import S3Store

        settings = self._settings
        given: dict[str, Any] = {"region": settings.artifacts_region or "us-east-1"}
        if settings.artifacts_access_key:
            given |= {"access_key_id": settings.artifacts_access_key, "secret_access_key": settings.artifacts_secret_key}
        if settings.artifacts_endpoint:
            given |= {"endpoint": settings.artifacts_endpoint, "virtual_hosted_style_request": False}
        client: dict[str, Any] = {"timeout": timedelta(seconds=settings.request_timeout_s), "connect_timeout": timedelta(seconds=10)}
        if settings.artifacts_endpoint.startswith("http://"):
            client["allow_http"] = True
        return S3Store(self._bucket, **given, client_options=cast("ClientConfig", client), retry_config={"max_retries": 2})

    @contextmanager
    def _asking(self, pack: str) -> Generator[S3Store]:
        """The store, and what it raises as one of ours. Messages of the library are not passed on: they may hold signed addresses."""
        from obstore import exceptions

        try:
            yield self._store()
        except (exceptions.BaseError, OSError) as error:
            raise self._trouble(str(error), pack) from None

    def _trouble(self, text: str, pack: str) -> Exception:
        """By the code that S3 answers with: the library has classes for some of them, and other ones for listings."""
        found, status = _CODE.search(text), _STATUS.search(text)
        code = found[1] if found else ""
        number = int(status[1]) if status else 0
        if number == 416:
            return _BeyondEnd()
        if code == "NoSuchBucket":
            return self._away(f"has no bucket {self._bucket!r}", "Create it, or correct DUJIANG_ARTIFACTS_URL.", "no_bucket")
        if code == "NoSuchKey" or (number == 404 and not code):
            return missing(pack)
        if number in (401, 403) or code in _REFUSALS:
            return self._away("refuses these credentials", _KEYS, "artifacts_refused")
        if not self._settings.artifacts_access_key and _ROLES in text:
            return self._away("is given no credentials", _KEYS, "artifacts_refused")
        said = f"answers with {code or number}" if number else "does not answer"
        return self._away(said, "Start it, or correct DUJIANG_ARTIFACTS_ENDPOINT or DUJIANG_ARTIFACTS_REGION.", "artifacts_unavailable")

    def _away(self, what: str, hint: str, code: str) -> Unavailable:
        return Unavailable(f"the artifact store at {self.where} {what}", dependency=True, hint=hint, code=code)
