"""What tests of the conformance suites share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import ConnectorContext

Make = Callable[[], Any]


def context(root: Path) -> ConnectorContext:
    """Of a connector called x."""
    return ConnectorContext("p", "x", str(root), Clock(7), "exactly-once")


def run_check(suite: Any, check: str, every: dict[str, Any]) -> None:
    """One test of a suite, with those of ``every`` that it asks for."""
    test = getattr(suite, f"test_{check}")
    test(**{name: every[name] for name in inspect.signature(test).parameters})
