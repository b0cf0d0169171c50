"""Rules by which sources plan a step: how many files it takes, and what comes before a failure."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Final, TypeVar

from conduit_dagster.recovery.errors import ConduitError

MOST_FILES: Final = 1_000
"""Maximum number of files per step: each is a split, and the whole step is stored."""
T = TypeVar("T")


def before_failure(found: Iterator[T], taken: Sized) -> Iterator[T]:
    """Yield what is found before a failure, which is raised only if nothing of it was ``taken``.

    So what comes before the failure is delivered first, and the next step raises it.
    """
    try:
        yield from found
    except ConduitError:
        if not taken:
            raise
