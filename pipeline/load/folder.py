"""A local directory that is scanned again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from pipeline.contracts import RawDocument, SourceItem
from pipeline.contracts.sources import Json, Listed, ScanEvent, ScopeDone, ScopeFailed, SourceCheck, SourceSpec
from pipeline.errors import BadRequest, Forbidden
from pipeline.load import files
from pipeline.load.entries import FileEntry, refusal
from pipeline.protocols import Connector, Surroundings

CHECK_EVERY = 200
"""Entries between two looks at whether the run was stopped."""


def create(spec: SourceSpec, around: Surroundings) -> Connector:
    """Raises BadRequest when `path` is not absolute."""
    path = os.path.expanduser(spec.options.get("path", ""))
    if not os.path.isabs(path):
        raise BadRequest(f"{path!r} is not an absolute path", hint="Give the folder's full path.", pointer="/options/path")
    return Folder(os.path.realpath(path), around, max_bytes=spec.max_bytes)


class Folder:
    """One scope: the whole folder. Keys are paths relative to it, so that a file that moves is another document."""

    def __init__(self, root: str, around: Surroundings, *, max_bytes: int) -> None:
        self._root, self._around, self._max_bytes = root, around, max_bytes

    def validate(self) -> list[SourceCheck]:
        if not os.path.isdir(self._root):
            return [SourceCheck("path", False, f"{self._root} is not a folder", "Check the path on the machine that runs the workers.")]
        readable = os.access(self._root, os.R_OK | os.X_OK)
        return [SourceCheck("path", readable, self._root, "" if readable else "Give the user that runs the workers read permission.")]

    def scan(self, checkpoint: Json) -> Iterator[ScanEvent]:
        """Every file, always from the start: a listing costs little. What cannot be looked into is a failed scope."""
        if not os.path.isdir(self._root):
            yield ScopeFailed(self._root, "not_found", f"{self._root} is not a folder", "Check that it is mounted.")
            return
        complete, listed = True, 0
        for number, entry in enumerate(files.walk([self._root], max_bytes=self._max_bytes)):
            if number % CHECK_EVERY == 0:
                self._around.check()
            if entry.problem is not None and os.path.isdir(entry.path):
                complete = False
                yield ScopeFailed(entry.path, entry.problem.code, entry.problem.detail, entry.problem.hint)
            else:
                listed += 1
                yield Listed(self._item(entry), self._root)
        if complete:
            yield ScopeDone(self._root, listed)
        else:
            yield ScopeFailed(
                self._root, "incomplete", f"{self._root} was not listed to its end", "Give the user that runs the workers read permission."
            )

    def _item(self, entry: FileEntry) -> SourceItem:
        item = entry.item
        revision = item.revision or f"{entry.mtime_ns}-{entry.size}"
        return replace(item, key=item.key.removeprefix(f"file://{self._root}/"), revision=revision, path=self._short(item.path))

    def _short(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip(os.sep)

    def fetch(self, item: SourceItem) -> RawDocument:
        entry = files.entry_of(replace(item, path=os.path.join(self._root, item.path)))
        disk = os.path.realpath(entry.path)
        if not disk.startswith(self._root.rstrip(os.sep) + os.sep):
            raise Forbidden(f"{item.key} leads out of the folder", code="path_outside", hint="Give the folder that it leads to as a source.")
        # What the listing had against a file is found again from its name; the rest comes up when it is read.
        problem = refusal(entry.member or entry.path, 0, self._max_bytes, named=False)
        if problem is not None:
            raise problem
        return files.load(item, files.read(entry, max_bytes=self._max_bytes))
