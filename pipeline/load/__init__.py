"""Connectors: they authenticate, list and download, and never parse."""

from __future__ import annotations

from collections.abc import Mapping

CONNECTORS: Mapping[str, str] = {"files": "pipeline.load.files:Files"}
"""Source kind → class."""
