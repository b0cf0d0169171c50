"""Helpers for tests of the conformance suites."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorContext, Limit, ReadOptions, Source, Split

Make = Callable[[], Any]


class Numbers(Source):
    """A source of thirty numbers; a position is a number."""

    name = "numbers"

    def initial(self) -> int:
        return 0

    def latest(self, start: int, limit: Limit, horizon: Any = None) -> int:
        return min(30, start + limit.records)

    def split(self, start: int, end: int, n: int) -> list[Split]:
        size = max(1, -(-(end - start) // n))
        return [Split(at, at - start, None, 0, {"to": min(at + size, end)}) for at in range(start, end, size)]

    def read(self, split: Split, options: ReadOptions) -> Iterator[list[Record]]:
        del options
        yield [Record(i + 1, {}, {"i": i}) for i in range(split.start, split.detail["to"])]


def context(root: Path) -> ConnectorContext:
    """Return the context of a connector named x."""
    return ConnectorContext("p", "x", str(root), Clock(7), "exactly-once")


def run_check(suite: Any, check: str, every: dict[str, Any]) -> None:
    """Run one test of a suite with the arguments from ``every`` that it takes."""
    test = getattr(suite, f"test_{check}")
    test(**{name: every[name] for name in inspect.signature(test).parameters})
