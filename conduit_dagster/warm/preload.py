"""Imports of a process that forks others."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from importlib import import_module


def preload(modules: Iterable[str]) -> None:
    """Import modules whose memory stays shared with all forks: a collection in one would copy every page it touches."""
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()
