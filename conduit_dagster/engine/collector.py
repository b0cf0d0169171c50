"""Python's garbage collector, out of the way while a task makes records."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def quiet_collector() -> Generator[None]:
    """Nothing is collected meanwhile. For tasks, whose records form no cycles."""
    # a block costs about a third less without it (SPARK_FACTS, 2)
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
