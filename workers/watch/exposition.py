"""Prometheus' text format: families with help, type and samples, their labels escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Samples: TypeAlias = Mapping[tuple[str, ...], float | None]
"""Label values → value; None leaves the sample out."""


class Exposition:
    """Collects families in the order in which they are to be read."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> None:
        self._family(name, "gauge", text, labels, samples)

    def counter(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> None:
        """`name` ends in ``_total``."""
        assert name.endswith("_total"), name
        self._family(name, "counter", text, labels, samples)

    def one(self, name: str, text: str, value: float | None) -> None:
        """A gauge without labels; None leaves it out."""
        if value is not None:
            self.gauge(name, text, (), {(): value})

    def histogram(self, name: str, text: str, label: str, bounds: Sequence[float], within: Samples, count: Samples, total: Samples) -> None:
        """One histogram for each value of `label`; `within` has (value, bound) → cumulative count."""
        self._head(name, "histogram", text)
        for (value,), number in count.items():
            for bound in bounds:
                reached = within.get((value, f"{bound:g}"), 0.0)
                self._sample(f"{name}_bucket", (label, "le"), (value, f"{bound:g}"), reached or 0.0)
            self._sample(f"{name}_bucket", (label, "le"), (value, "+Inf"), number or 0.0)
            self._sample(f"{name}_sum", (label,), (value,), total.get((value,), 0.0) or 0.0)
            self._sample(f"{name}_count", (label,), (value,), number or 0.0)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _family(self, name: str, kind: str, text: str, labels: Sequence[str], samples: Samples) -> None:
        self._head(name, kind, text)
        for values, value in samples.items():
            if value is not None:
                self._sample(name, labels, values, value)

    def _head(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def _sample(self, name: str, labels: Sequence[str], values: Sequence[str], value: float) -> None:
        pairs = ",".join(_pairs(labels, values))
        self._lines.append(f"{name}{{{pairs}}} {value:.10g}" if pairs else f"{name} {value:.10g}")


def _pairs(labels: Sequence[str], values: Sequence[str]) -> Iterator[str]:
    for label, value in zip(labels, values, strict=True):
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        yield f'{label}="{escaped}"'


def folded(samples: Mapping[tuple[str, ...], float], keep: int, *, at: int = -1) -> dict[tuple[str, ...], float]:
    """The same sums with at most `keep` values of one label, the largest; the others are added up as ``other``.

    Providers and servers may invent names without end, and every name would be a series.
    """
    sizes: dict[str, float] = {}
    for values, value in samples.items():
        sizes[values[at]] = sizes.get(values[at], 0.0) + value
    kept = set(sorted(sizes, key=lambda name: (-sizes[name], name))[:keep])
    found: dict[tuple[str, ...], float] = {}
    for values, value in samples.items():
        named = list(values)
        named[at] = values[at] if values[at] in kept else "other"
        found[tuple(named)] = found.get(tuple(named), 0.0) + value
    return found
