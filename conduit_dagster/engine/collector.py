"""Control of Python's garbage collector while a task creates records."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def quiet_collector() -> Generator[None]:
    """Disable garbage collection in the ``with`` block. For tasks, whose records form no cycles."""
    # a block takes about a third less time without it (SPARK_FACTS, 2)
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
