"""Packs in an S3-compatible store: AWS, MinIO, Ceph, R2 and others. Needs the extra ``s3``."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from pipeline.contracts import Span
from pipeline.errors import BadRequest, Forbidden, NotFound, PipelineError, Unauthorised, Unavailable, Unsupported
from workers.artifacts.local import missing

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Store

    from pipeline.settings import Settings

AT_ONCE = 1000
"""Packs of one request to delete."""
_KEYS = "Check DUJIANG_ARTIFACTS_ACCESS_KEY and DUJIANG_ARTIFACTS_SECRET_KEY."


class Bucket:
    """A `Shelf` in a bucket below a prefix. A write is one request, so a pack is there whole or not at all."""

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
            self._obstore.put(store, self._prefix + pack, b"".join(parts))

    def get(self, pack: str, spans: Sequence[Span]) -> list[bytes]:
        if not spans:
            return []
        path = self._prefix + pack
        try:
            with self._asking(pack) as store:
                found = self._obstore.get_ranges(store, path, starts=[start for start, _ in spans], ends=[end for _, end in spans])
                return [bytes(piece) for piece in found]
        except Unavailable:
            # A range beyond the end is refused as a whole: what is there is read, and whoever asked says what is missing.
            with self._asking(pack) as store:
                whole = bytes(self._obstore.get(store, path).bytes())
            return [whole[start:end] for start, end in spans]

    def packs(self) -> Iterator[tuple[str, float]]:
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
                    yield name, found["last_modified"].timestamp()

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

    def check(self) -> None:
        try:
            with self._asking("") as store:
                next(self._obstore.list(store, prefix=self._prefix or None), None)
        except NotFound:
            raise self._no_bucket() from None

    def _store(self) -> S3Store:
        """Made anew after a fork: its threads do not survive one."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                self._made = (os.getpid(), self._open())
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
        except FileNotFoundError as error:
            raise (self._no_bucket() if "NoSuchBucket" in str(error) else missing(pack)) from None
        except (exceptions.UnauthenticatedError, exceptions.PermissionDeniedError) as error:
            raise self._refused(error) from None
        except (exceptions.BaseError, OSError) as error:
            text = str(error)
            if any(word in text for word in ("403", "401", "SignatureDoesNotMatch", "InvalidAccessKeyId", "AccessDenied")):
                raise self._refused(error) from None
            if "NoSuchBucket" in text:
                raise self._no_bucket() from None
            raise Unavailable(
                f"the artifact store at {self.where} does not answer",
                dependency=True,
                hint="Start it, or correct DUJIANG_ARTIFACTS_ENDPOINT.",
                code="artifacts_unavailable",
            ) from None

    def _no_bucket(self) -> NotFound:
        return NotFound(f"there is no bucket {self._bucket!r}", hint="Create it, or correct DUJIANG_ARTIFACTS_URL.", code="no_bucket")

    def _refused(self, error: Exception) -> PipelineError:
        denied = "AccessDenied" in str(error) or type(error).__name__ == "PermissionDeniedError"
        kind = Forbidden if denied else Unauthorised
        return kind(f"{self.where} refuses these credentials", hint=_KEYS, code="artifacts_refused")
