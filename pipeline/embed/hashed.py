"""Signed hashed n-grams: vectors from numpy alone, for machines where not even the local model can be installed.

Features of a text, after NFKC and lower case: for Chinese, Japanese and Korean each character and each pair
of neighbours; for other scripts each word and its pieces of four letters. Every feature adds its weight, with a sign
of its own, to one of `DIMENSION` places. Texts are near when they share letters, not when they mean the same.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import EmbeddedChunks, Vectors
from pipeline.protocols import EmbedderProfile
from pipeline.settings import Settings

DIMENSION = 2_048
VERSION = 1
"""Raise it whenever the same text would get another vector."""

_MAX_CHARACTERS = 32_768
_AT_ONCE = 32
_GAP, _LETTER, _IDEOGRAPH = 0, 1, 2
_BASE = 0x9E3779B97F4A7C15

_FEATURES = ((_IDEOGRAPH, 1, 0.8), (_IDEOGRAPH, 2, 1.0), (_LETTER, 4, 0.4))
"""(kind, characters, weight); the best of those tried on cmrc2018 and DRCD: triples and other damping lost 1 to 20 points."""

Codes = NDArray[np.uint64]


def profile(settings: Settings) -> EmbedderProfile:
    """Constant."""
    return EmbedderProfile(
        name="hashed",
        revision=f"{VERSION}-{DIMENSION}",
        dimension=DIMENSION,
        max_tokens=_MAX_CHARACTERS,
        batch_size=512,
        batch_tokens=1_000_000,
        lexical_weight=0.5,
        refuse_below=0.27,
        in_process=True,
    )


def build(settings: Settings) -> HashedEmbedder:
    """Nothing to load."""
    return HashedEmbedder(profile(settings))


class HashedEmbedder:
    """Without state, so threads share it freely."""

    def __init__(self, known: EmbedderProfile) -> None:
        self._profile = known

    @property
    def profile(self) -> EmbedderProfile:
        """Constant."""
        return self._profile

    def encode(self, texts: Sequence[str]) -> EmbeddedChunks:
        """Shape (len(texts), 2048), length 1; a text without letters or digits gets one fixed vector."""
        vectors = np.zeros((len(texts), DIMENSION), np.float32)
        for start in range(0, len(texts), _AT_ONCE):
            part = texts[start : start + _AT_ONCE]
            vectors[start : start + len(part)] = _vectors(part)
        return EmbeddedChunks(vectors, self._profile.name, self._profile.revision)

    def encode_queries(self, texts: Sequence[str]) -> EmbeddedChunks:
        """The same as for passages."""
        return self.encode(texts)


def _vectors(texts: Sequence[str]) -> Vectors:
    """Shape (len(texts), DIMENSION)."""
    folded = [unicodedata.normalize("NFKC", text[:_MAX_CHARACTERS]).lower() for text in texts]
    # a gap before and after every text, so that no feature reaches over a border; the last one is as long as any feature
    joined = "\n" + "\n".join(folded) + "\n\n\n\n"
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    sizes = np.fromiter(map(len, folded), dtype=np.int64, count=len(folded)) + 1
    owner = np.repeat(np.arange(len(folded)), sizes)
    owner = np.concatenate((owner[:1], owner, np.repeat(owner[-1:], 3)))
    kinds = _kinds()[np.minimum(points, 0xFFFF)]
    astral = points > 0xFFFF
    if astral.any():
        kinds[astral] = np.where((points[astral] >= 0x20000) & (points[astral] < 0x40000), _IDEOGRAPH, _GAP)
    codes = points.astype(np.uint64)

    keys: list[NDArray[np.int64]] = []
    weights: list[NDArray[np.float64]] = []
    for kind, size, weight in _FEATURES:
        starts = _runs(kinds == kind, size)
        if starts.size:
            _add(keys, weights, _gram(codes, starts, size), owner[starts], weight, salt=size)
    words, begins = _words(codes, kinds)
    if begins.size:
        _add(keys, weights, words, owner[begins], 1.0, salt=9)
    return _place(keys, weights, len(texts))


def _runs(member: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """Where `size` members in a row begin."""
    inside = member[: len(member) - size + 1].copy()
    for step in range(1, size):
        inside &= member[step : len(member) - size + 1 + step]
    return np.flatnonzero(inside)


def _gram(codes: Codes, starts: NDArray[np.int64], size: int) -> Codes:
    found = codes[starts]
    for step in range(1, size):
        found = found * np.uint64(_BASE) + codes[starts + step]
    return found


def _words(codes: Codes, kinds: NDArray[np.uint8]) -> tuple[Codes, NDArray[np.int64]]:
    """A hash of each run of letters and digits, and where it begins."""
    letters = (kinds == _LETTER).view(np.int8)
    edges = np.diff(letters)
    begins, ends = np.flatnonzero(edges == 1) + 1, np.flatnonzero(edges == -1) + 1
    if not begins.size:
        return np.zeros(0, np.uint64), begins
    lengths = ends - begins
    offsets = np.cumsum(lengths) - lengths
    within = np.arange(int(lengths.sum())) - np.repeat(offsets, lengths)
    members = codes[np.repeat(begins, lengths) + within]
    # position enters through the mix, so that anagrams differ
    mixed = _mix(members + (within.astype(np.uint64) << np.uint64(32)))
    return np.add.reduceat(mixed, offsets), begins


def _add(
    keys: list[NDArray[np.int64]], weights: list[NDArray[np.float64]], hashes: Codes, owner: NDArray[np.int64], weight: float, *, salt: int
) -> None:
    """Append this kind's features: 31 bits of hash under the text's number, once each, damped by the logarithm of their count."""
    mixed = _mix(hashes + np.uint64(salt * 0x1000003))
    tagged = ((mixed >> np.uint64(33)).astype(np.int64)) | (owner.astype(np.int64) << 31)
    tagged.sort()
    first = np.flatnonzero(np.concatenate((np.ones(1, np.bool_), tagged[1:] != tagged[:-1])))
    counts = np.diff(np.append(first, tagged.size))
    keys.append(tagged[first])
    weights.append((1.0 + np.log(counts)) * weight)


def _place(keys: list[NDArray[np.int64]], weights: list[NDArray[np.float64]], rows: int) -> Vectors:
    if keys:
        tagged, weight = np.concatenate(keys), np.concatenate(weights)
        signed = np.where(tagged & (1 << 11), weight, -weight)
        cells = (tagged >> 31) * DIMENSION + (tagged & (DIMENSION - 1))
        flat = np.bincount(cells, weights=signed, minlength=rows * DIMENSION)
    else:
        flat = np.zeros(rows * DIMENSION)
    table = flat.reshape(rows, DIMENSION)
    norms = np.sqrt(np.einsum("ij,ij->i", table, table))
    # a store refuses a vector of zeros, and cosine with one means nothing
    table[norms == 0.0, 0] = 1.0
    norms[norms == 0.0] = 1.0
    return (table / norms[:, None]).astype(np.float32)


def _mix(values: Codes) -> Codes:
    """The finaliser of splitmix64: every bit of the input moves half of the bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.cache
def _kinds() -> NDArray[np.uint8]:
    """Kind of each code point of the basic plane, shape (65536,)."""
    table = np.zeros(65_536, np.uint8)
    for point in range(65_536):
        if chr(point).isalnum():
            table[point] = _LETTER
    for low, high in ((0x2E80, 0x2FE0), (0x3005, 0x3008), (0x3040, 0x3100), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xF900, 0xFB00)):
        table[low:high] = _IDEOGRAPH
    return table
