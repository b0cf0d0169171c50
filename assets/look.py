"""A look at a pipeline while it runs: everything that events and checks are made of."""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from assets.offsets import offset_gaps
from conduit_dagster.engine.compiled import CompiledPipeline, compile_program
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.engine.report import Progress, StepReport
from conduit_dagster.state.dead_letters import Wanted, newest, reasons
from conduit_dagster.state.history import Event, events
from conduit_dagster.state.overview import consumer_rows, real_source_rows

_NEWEST = 10


@dataclass(frozen=True)
class Look:
    """What there was to see at one moment."""

    progress: Progress
    """Of this run."""
    batch_seconds: float
    """Of the newest step; 0 where there was none."""
    waited: float
    """Seconds since the newest ack, or since the start of the run."""
    sources: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    consumers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    letters: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The newest open dead letters."""
    reasons: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """How many are open, by node and code; the most frequent first."""
    open_before: int = 0
    """How many were open when the run began."""
    lag: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """How much waits at each source that can tell, and its unit."""
    gaps: list[str] = field(default_factory=list[str])
    history: list[Event] = field(default_factory=list[Event])
    """The newest events of the pipeline's life, the newest last."""

    @property
    def open(self) -> int:
        """How many dead letters are open."""
        return sum(row["letters"] for row in self.reasons)

    @property
    def waiting(self) -> bool:
        """Whether any source is known to hold something that was not read."""
        return any(amount for amount, _ in self.lag.values())


class Observer:
    """Takes the engine's reports, in its thread, and gives looks, in another one."""

    def __init__(self, bound: BoundPipeline, database: sa.Engine) -> None:
        self._bound, self._database = bound, database
        # the lag is asked for beside the running engine, so not of its own sources
        self._pipeline: CompiledPipeline = compile_program(bound.program)
        self._lock = threading.Lock()
        self._open_before = sum(row["letters"] for row in self._reasons())
        self._progress, self._batch, self._acked = Progress(), 0.0, time.monotonic()

    def observe(self, step: StepReport, progress: Progress) -> None:
        """A step is done. The engine goes on changing ``progress``."""
        with self._lock:
            self._progress, self._batch, self._acked = copy.deepcopy(progress), step.seconds, time.monotonic()

    @property
    def steps(self) -> int:
        """How many steps of this run are done."""
        return self._progress.steps

    def look(self) -> Look:
        """Looks at the store and at the sources."""
        with self._lock:
            progress, batch, waited = self._progress, self._batch, time.monotonic() - self._acked
        sources = {row["id"]: row for row in real_source_rows(self._database, self._bound.id)}
        return Look(
            progress,
            batch,
            waited,
            sources,
            {row["id"]: row for row in consumer_rows(self._database, self._bound.id)},
            newest(self._database, self._bound.id, Wanted(), _NEWEST),
            self._reasons(),
            self._open_before,
            self._lag(sources),
            offset_gaps(self._database, self._bound.id),
            events(self._database, self._bound.id, _NEWEST),
        )

    def _reasons(self) -> list[dict[str, Any]]:
        return reasons(self._database, self._bound.id, Wanted())

    def _lag(self, sources: dict[str, dict[str, Any]]) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        for inlet in self._pipeline.sources:
            row = sources.get(inlet.id)
            try:
                amount = inlet.source.lag(row["position"] if row else inlet.source.initial())
            except Exception:  # noqa: BLE001  # a source that is away is the engine's business; here its lag is unknown
                amount = None
            if amount is not None:
                found[inlet.id] = (amount, inlet.source.lag_unit)
        return found
