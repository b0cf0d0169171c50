"""Filters for dead letters, as given in options and forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Filters:
    """Criteria for dead letters; None matches everything."""

    node: str | None = None
    code: str | None = None
    source: str | None = None
    namespace: str | None = None
    since: str | None = None
    """An age or a time, like ``until``."""
    until: str | None = None
    part: str | None = None
    where: str = ""
    """An expression over the failed record; empty matches all."""
    ids: Sequence[str] | None = None
    """``PIPELINE/STEP.NUMBER``."""
