"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL = 0.1


def wait_until(condition: Callable[[], object], what: str, seconds: float, said: Callable[[], str]) -> None:
    """Ask until it holds. Raises ``TimeoutError`` with ``what`` did not come true, and what ``said`` gives then."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"this did not come true within {seconds:g} seconds: {what}\n{said()}")
        time.sleep(_POLL)
