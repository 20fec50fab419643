"""What a walk over files yields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.contracts import Scalar, SourceItem
from pipeline.errors import Malformed, PipelineError, TooLarge, Unsupported

JUNK = frozenset(
    ".pyc .pyo .so .dll .dylib .exe .o .a .obj .lib .class .jar .war .bin .dat .db .sqlite .sqlite3 .lock .swp .bak .tmp .part .crdownload .pid "
    ".woff .woff2 .ttf .otf .eot .map .ico .cur .pak .idx .pack .npy .npz .pt .pth .onnx .safetensors .gguf .h5 .pkl .parquet .feather .arrow".split()
)
"""Never a document: left out of folders without a word, refused when named directly."""

UNREAD = frozenset(
    ".doc .ppt .pptx .pps .ppsx .odt .odp .epub .mobi .azw3 .eml .msg .mbox .rtf .pages .numbers .key .ipynb .mht .mhtml .xps .djvu .vsd .vsdx .one "
    ".png .jpg .jpeg .gif .bmp .tif .tiff .webp .heic .psd .ai .mp3 .wav .m4a .flac .ogg .aac .wma .mp4 .m4v .mov .avi .mkv .webm .wmv "
    ".gz .tgz .bz2 .xz .7z .rar .tar .zst .dmg .iso .msi .apk .deb .rpm".split()
)
"""A person may expect these to be searched, and no parser reads them: they are listed as failures."""

HINT = "Convert it to Markdown, text, HTML, CSV, JSON, DOCX, XLSX or PDF, or leave it out."


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One document found, or one thing that cannot become one."""

    item: SourceItem
    """`path` is all that reading needs: ``/abs/file``, ``/abs/archive.zip!/member`` or ``/abs/manifest.jsonl!/offset``."""
    size: int = 0
    """Bytes, uncompressed."""
    mtime_ns: int = 0
    """Of the file on disk: of the archive or manifest for what lies in one."""
    problem: PipelineError | None = None
    """Rejected or Skipped; such an entry must not be read."""

    @property
    def path(self) -> str:
        """The file on disk."""
        return self.item.path.split("!/", 1)[0] if self.member else self.item.path

    @property
    def member(self) -> str:
        """Name inside a ZIP archive, or offset of a line in a manifest; empty for a file by itself."""
        before, mark, member = self.item.path.partition("!/")
        return member if mark and before.lower().endswith((".zip", ".jsonl", ".ndjson")) else ""


def found(
    path: str,
    stat: os.stat_result,
    *,
    key: str = "",
    member: str = "",
    size: int = -1,
    mark: str = "",
    title: str = "",
    url: str = "",
    media_type: str = "",
    metadata: Mapping[str, Scalar | list[str]] | None = None,
) -> FileEntry:
    """An entry that can be read. `mark` tells versions of a member apart where the file's own time is too coarse."""
    full = f"{path}!/{member}" if member else path
    bytes_ = stat.st_size if size < 0 else size
    revision = mark or f"{stat.st_mtime_ns}-{bytes_}"
    item = SourceItem(key or f"file://{full}", revision, title, url, full, media_type, "", dict(metadata or {}))
    return FileEntry(item, bytes_, stat.st_mtime_ns)


def trouble(path: str, problem: PipelineError, *, key: str = "", stat: os.stat_result | None = None) -> FileEntry:
    """An entry that stands for a failure."""
    shown = path.encode("utf-8", "backslashreplace").decode()
    problem.document = key or f"file://{shown}"
    item = SourceItem(problem.document, path=shown)
    return FileEntry(item, stat.st_size if stat else 0, stat.st_mtime_ns if stat else 0, problem)


def refusal(name: str, size: int, max_bytes: int, *, named: bool) -> PipelineError | None:
    """Why a file cannot become a document, judged by its name and size."""
    end = os.path.splitext(name)[1].lower()
    if end in UNREAD or (named and end in JUNK):
        return Unsupported(f"{os.path.basename(name)}: files of type {end} are not read", hint=HINT)
    if size > max_bytes:
        return TooLarge(
            f"{os.path.basename(name)} has {size / 1e6:,.0f} MB; the limit is {max_bytes / 1e6:,.0f} MB",
            hint="Split it, or raise DUJIANG_MAX_FILE_MB.",
        )
    return None


def unwanted(name: str) -> bool:
    """Hidden files, version control, and what programs leave behind."""
    return (
        name.startswith((".", "~$"))
        or name in {"CVS", "__pycache__", "__MACOSX", "node_modules", "Thumbs.db", "desktop.ini"}
        or os.path.splitext(name)[1].lower() in JUNK
    )


def readable_name(path: str) -> PipelineError | None:
    """A name that is no Unicode cannot be shown, stored or cited."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return Malformed("the file's name is not valid UTF-8", hint="Rename the file.", code="bad_name")
    return None
