"""Planning of a step up to what can't be read."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TypeVar

from conduit_dagster.recovery.errors import ConduitError

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
