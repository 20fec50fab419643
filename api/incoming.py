"""From paths and texts on this machine to documents that can be taken in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.errors import NotFound
from workers.views import Incoming

if TYPE_CHECKING:
    from pipeline.load.files import FileEntry


def listed(paths: Sequence[str], *, max_bytes: int) -> list[Incoming]:
    """Everything that the paths name; what cannot be read is in the list too, with its problem.

    Raises NotFound when the paths name nothing at all: a mistyped path is no failed document.
    """
    from pipeline.load.files import walk

    found = [_incoming(entry) for entry in walk(paths, max_bytes=max_bytes)]
    missing = [item.problem for item in found if isinstance(item.problem, NotFound)]
    if missing and len(missing) == len(found):
        raise missing[0]
    if not found:
        raise NotFound(f"there is no document in {', '.join(paths)}", hint="Check the path; hidden files are left out.", code="nothing_found")
    return found


def _incoming(entry: FileEntry) -> Incoming:
    item = entry.item
    return Incoming(
        key=item.key,
        title=item.title,
        url=item.url,
        path=entry.path,
        member=entry.member,
        media_type=item.media_type,
        metadata=item.metadata,
        problem=entry.problem,
    )


def contents(item: Incoming, max_bytes: int) -> bytes:
    """What stands in an archive or a manifest. Raises Gone, Forbidden, TooLarge, Malformed."""
    from pipeline.contracts import SourceItem
    from pipeline.load.files import entry_of, read

    source = SourceItem(item.key, title=item.title, url=item.url, path=f"{item.path}!/{item.member}", media_type=item.media_type)
    return read(entry_of(source), max_bytes=max_bytes)


def of_text(key: str, text: str) -> Incoming:
    """A text as a document; without a suffix in its key it is plain text."""
    suffixed = "." in key.rsplit("/", 1)[-1]
    return Incoming(key=key, title="", data=text.encode("utf-8", "replace"), media_type="" if suffixed else "text/plain")
