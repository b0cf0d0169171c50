"""What people say of the dead letters that they mean, as options and forms have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Filters:
    """What is None does not matter."""

    node: str | None = None
    code: str | None = None
    source: str | None = None
    namespace: str | None = None
    since: str | None = None
    """An age or a time, like ``until``."""
    until: str | None = None
    part: str | None = None
    where: str = ""
    """An expression over the failed record; empty: all of them."""
    ids: Sequence[str] | None = None
    """``PIPELINE/STEP.NUMBER``."""
