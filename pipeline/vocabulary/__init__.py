"""Byte-pair vocabularies as shipped with the package: read from disk, checked, never downloaded."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import BrokenContract, Unsupported

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What makes an encoding: tiktoken's own constants for it."""

    sha256: str
    """Of the decompressed file; the value that tiktoken itself insists on."""
    pattern: str
    special: Mapping[str, int]


VOCABULARIES: Mapping[str, Vocabulary] = {
    "cl100k_base": Vocabulary(
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern=(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
            r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
        ),
        special={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": Vocabulary(
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern=(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        special={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
}


def vocabulary(name: str) -> Vocabulary:
    """The constants of one encoding. Raises Unsupported for one that is not shipped."""
    found = VOCABULARIES.get(name)
    if found is None:
        raise Unsupported(f"unknown tokenizer {name!r}", hint=f"Use one of: {', '.join(sorted(VOCABULARIES))}.", code="unknown_tokenizer")
    return found


def ranks(name: str, folder: Path = FOLDER) -> dict[bytes, int]:
    """Token bytes → id, of a file whose hash is right.

    Raises: Unsupported for an unknown name, BrokenContract when the file is missing, damaged or altered.
    """
    expected = vocabulary(name).sha256
    path = folder / f"{name}.tiktoken.gz"
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(name, f"cannot be read ({type(error).__name__})") from error
    if hashlib.sha256(raw).hexdigest() != expected:
        raise _damaged(name, "does not have the expected hash")
    fields = raw.split()
    return dict(zip(map(a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))


def _damaged(name: str, what: str) -> BrokenContract:
    return BrokenContract(f"the vocabulary file of {name} {what}", hint="Install Dujiang again.", code="damaged_vocabulary")
