"""Imports of a process that forks others."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from importlib import import_module


def preload(modules: Iterable[str]) -> None:
    """Import modules and freeze them: their memory is shared with all forks, and a collection would copy it."""
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()
