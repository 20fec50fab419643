"""Stage outputs in packs, in a local folder or in an S3-compatible store, found through the ledger's `artifact_refs`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pipeline.errors import BadRequest
from workers.artifacts.packs import Artifacts, Entry

if TYPE_CHECKING:
    from pipeline.settings import Settings

__all__ = ["Artifacts", "Entry", "check_apart", "open_artifacts"]


def open_artifacts(settings: Settings) -> Artifacts:
    """What DUJIANG_ARTIFACTS_URL names. Connects at first use. Raises BadRequest, or Unsupported when the extra for S3 is not installed."""
    parts = urlsplit(settings.artifacts_url)
    if parts.scheme == "file":
        from workers.artifacts.local import Folder

        return Artifacts(Folder(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        from workers.artifacts.s3 import Bucket

        return Artifacts(Bucket(parts.netloc, unquote(parts.path).strip("/"), settings))
    hint = "Set DUJIANG_ARTIFACTS_URL to file:///FOLDER or s3://BUCKET/PREFIX."
    raise BadRequest(f"artifacts cannot be kept at {parts.scheme or settings.artifacts_url!r}", hint=hint, code="bad_setting")


def check_apart(settings: Settings) -> None:
    """Try to write, in a process of its own: once a client of S3 has been used, whoever is forked afterwards cannot use another.

    Raises NotFound, Unauthorised, Unavailable, BadRequest, Unsupported. Call it before there are threads.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, get_context("fork")) as apart:
        apart.submit(_check, settings).result()


def _check(settings: Settings) -> None:
    open_artifacts(settings).shelf.check()
