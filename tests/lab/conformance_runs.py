"""Helpers for tests of the conformance suites."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import ConnectorContext

Make = Callable[[], Any]


def context(root: Path) -> ConnectorContext:
    """Return the context of a connector named x."""
    return ConnectorContext("p", "x", str(root), Clock(7), "exactly-once")


def run_check(suite: Any, check: str, every: dict[str, Any]) -> None:
    """Run one test of a suite with the arguments from ``every`` that it takes."""
    test = getattr(suite, f"test_{check}")
    test(**{name: every[name] for name in inspect.signature(test).parameters})
