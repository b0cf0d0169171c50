"""Modules of a project, loaded from their text."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conduit_dagster.processors.common.modules import module_of

TEXT = """
from gate import begun, returned

begun.set()
returned.wait(0.5)

def clean(record):
    return record
"""


def test_a_thread_gets_no_module_that_another_one_still_executes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sensors read an edited project at the same time; the second one found no function in it."""
    begun, returned = Event(), Event()
    monkeypatch.setitem(sys.modules, "gate", cast(Any, SimpleNamespace(begun=begun, returned=returned)))

    def is_whole() -> bool:
        return hasattr(module_of("slowly", "loaded", TEXT, "loaded.py"), "clean")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(is_whole)
        assert begun.wait(120)
        second = threads.submit(is_whole)
        second.add_done_callback(lambda _: returned.set())
        assert first.result() and second.result()
