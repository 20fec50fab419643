"""What a calibration shows."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.tuning import Calibration


@dataclass(frozen=True, slots=True)
class CalibrationView:
    """What a calibration found."""

    collection: str
    generation: int
    calibration: Calibration
    before: float
    """The threshold that held until now."""
    before_source: str
    """calibrated, or embedder profile."""
    stored: bool
