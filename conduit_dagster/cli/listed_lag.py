"""Lag of many pipelines, queried in threads, so that a hanging source does not block a list."""

from __future__ import annotations

import math
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from conduit_dagster.cli.progress import amount
from conduit_dagster.engine.registering import attach_kept_to_look

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa

    from conduit_dagster.engine.bound_pipeline import BoundPipeline

Lag = dict[str, int]
"""An amount by unit."""
_PATIENCE = 0.05
"""Seconds without an answer after which another thread starts beside the waiting ones: threads slow down quick sources.
"""
_THREADS = 32


class LagsFound(NamedTuple):
    """Lag of the pipelines, as far as their sources have answered."""

    known: dict[str, Lag | None]
    """By pipeline; None if a source can't determine it."""
    open: set[str]
    """Pipelines that were not queried, or whose sources have not answered yet."""


def ask_lags(
    pipelines: Sequence[BoundPipeline],
    store: sa.Engine | None,
    positions: Mapping[str, list[dict[str, Any]]],
    seconds: float | None,
) -> LagsFound:
    """Return the sources' lags that are known within ``seconds``; None waits for all of them.

    ``positions``: rows of the sources of each pipeline that ever ran. A hanging thread is abandoned; it does not keep
    the process alive.
    """
    until = math.inf if seconds is None else time.monotonic() + seconds
    question, known, threads = _Question(pipelines, store, positions, until), dict[str, Lag | None](), 0
    asked = {bound.id for bound in pipelines}
    while len(known) < len(asked) and (left := until - time.monotonic()) > 0:
        try:
            name, lag = question.answers.get(timeout=min(_PATIENCE, left) if threads else 0)
            known[name] = lag
        except queue.Empty:
            if threads < _THREADS:
                threads += 1
                threading.Thread(target=question.ask, daemon=True, name=f"lag-{threads}").start()
    return LagsFound(known, asked - known.keys())


class _Question:
    """Pipelines still to be queried, in the order of the list, and the answers."""

    def __init__(
        self,
        pipelines: Sequence[BoundPipeline],
        store: sa.Engine | None,
        positions: Mapping[str, list[dict[str, Any]]],
        until: float,
    ) -> None:
        self.answers: queue.SimpleQueue[tuple[str, Lag | None]] = queue.SimpleQueue()
        self._left: queue.SimpleQueue[BoundPipeline] = queue.SimpleQueue()
        self._store, self._positions, self._until = store, positions, until
        for bound in pipelines:
            self._left.put(bound)

    def ask(self) -> None:
        """Query one pipeline after the other until time runs out. Several threads may call it."""
        with suppress(queue.Empty):
            while time.monotonic() < self._until:
                bound = self._left.get_nowait()
                self.answers.put((bound.id, self._lag(bound)))

    def _lag(self, bound: BoundPipeline) -> Lag | None:
        """Return the lag of a pipeline; None if one of its sources fails, or can't determine it."""
        with suppress(BaseException):  # any plugin's code; without an answer the list would wait for it
            if self._store is not None:
                attach_kept_to_look(bound.compiled, self._store)
            return self._total(bound)
        return None

    def _total(self, bound: BoundPipeline) -> Lag | None:
        rows = self._positions.get(bound.id, ())
        known, logged = {row["id"]: row["position"] for row in rows}, sum(row["undelivered"] for row in rows)
        # logged records count as well, although they no longer wait at their source
        total: Lag = {"records": logged} if logged else {}
        for node in bound.compiled.sources:
            lag = node.lag(known)
            if lag is None:
                return None
            total[node.source.lag_unit] = total.get(node.source.lag_unit, 0) + lag
        return total


def lag_text(lag: Lag | None) -> str:
    """Return a pipeline's lag as text: ``12 records, 1.2 MB``, ``none``; empty if unknown."""
    if lag is None:
        return ""
    return ", ".join(amount(number, unit) for unit, number in lag.items() if number) or "none"
