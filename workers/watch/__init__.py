"""Status, doctor and metrics: what runs, what waits, what is wrong."""

from __future__ import annotations

from workers.watch.doctor import doctor
from workers.watch.metrics import metrics
from workers.watch.status import status

__all__ = ["doctor", "metrics", "status"]
