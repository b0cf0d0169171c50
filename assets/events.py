"""Materialisations of a run: plottable numbers, positions, nacks by reason, the newest dead letters."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dagster as dg
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.assets.names import ACKS
from conduit_dagster.assets.offset_gaps import offset_gaps
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.daemon_threads import IN_RUN, answer_within
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline, compile_program
from conduit_dagster.engine.registering import attach_kept_to_look
from conduit_dagster.engine.report import RunProgress, StepReport
from conduit_dagster.engine.run_status import AWAY
from conduit_dagster.readable import when
from conduit_dagster.state.database import unreachable
from conduit_dagster.state.dead_letters import DeadLetterQuery, letter_id, newest, reasons
from conduit_dagster.state.history import Event, events, said
from conduit_dagster.state.overview import consumer_rows, source_rows

_NEWEST = 10


@dataclass(frozen=True)
class RunSnapshot:
    """State of a run, its sources and its pipeline at one moment."""

    progress: RunProgress
    """Progress of this run."""
    batch_seconds: float
    """Duration of the newest step; 0 if there was none."""
    waited: float
    """Seconds since the newest ack, or since the start of the run; if records wait, at most since they were first seen
    waiting: a record that arrives after a quiet hour has not waited for an hour.
    """
    sources: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    consumers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    letters: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The newest open dead letters."""
    reasons: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Numbers of open dead letters by node and code, the most frequent first."""
    open_before: int = 0
    """Number of open dead letters when the run began."""
    lag: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """Lag and its unit of each source that can determine it."""
    failing: list[str] = field(default_factory=list[str])
    """Sources that failed when queried for their lag, or did not answer."""
    gaps: list[str] = field(default_factory=list[str])
    history: list[Event] = field(default_factory=list[Event])
    """The newest events of the pipeline's history, in chronological order."""

    @property
    def open(self) -> int:
        """Number of open dead letters."""
        return sum(row["letters"] for row in self.reasons)

    @property
    def logged(self) -> int:
        """Number of logged records that are not delivered: they no longer wait at their source."""
        return sum(row.get("undelivered", 0) for row in self.sources.values())

    @property
    def waiting(self) -> bool:
        """Whether unacked records are known: unread at a source, or logged and not delivered."""
        return _anything(self.sources, self.lag)

    def keeps(self, max_lag: float) -> bool:
        """Return whether nothing has waited for longer than ``max_lag`` seconds, as far as the sources know.

        A failing source may have unread records; a source that never knows its lag counts as fully read.
        """
        return self.waited < max_lag or not (self.waiting or self.failing)


def _anything(sources: Mapping[str, Mapping[str, Any]], lag: Mapping[str, tuple[int, str]]) -> bool:
    return any(amount for amount, _ in lag.values()) or any(row.get("undelivered") for row in sources.values())


class Observer:
    """Receiver of the engine's reports, in its thread, that takes snapshots in another thread."""

    def __init__(self, bound: BoundPipeline, database: sa.Engine) -> None:
        self.bound, self._database = bound, database
        self.pipeline: CompiledPipeline = compile_program(bound.program)
        """A separate instance: the engine's own is in use."""
        attach_kept_to_look(self.pipeline, database)
        self._lock = threading.Lock()
        with self._answering():
            self._open_before = sum(row["letters"] for row in self._reasons())
        self._progress, self._batch, self._acked = RunProgress(), 0.0, time.monotonic()
        self._first_seen: float | None = None
        """Time at which records were first seen waiting; None while nothing waits."""

    def observe(self, step: StepReport, progress: RunProgress) -> None:
        """Record a finished step. Copies ``progress``, since the engine keeps changing it."""
        with self._lock:
            self._progress, self._batch, self._acked = copy.deepcopy(progress), step.seconds, time.monotonic()

    @property
    def steps(self) -> int:
        """Number of finished steps of this run."""
        return self._progress.steps

    def snapshot(self) -> RunSnapshot:
        """Take a snapshot of the store and the sources. Raises ``ConduitError`` if the store does not answer."""
        with self._answering():
            return self._snapshot()

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise unreachable(self._database, error, AWAY) from None

    def _snapshot(self) -> RunSnapshot:
        with self._lock:
            progress, batch, acked, now = self._progress, self._batch, self._acked, time.monotonic()
        sources = {row["id"]: row for row in source_rows(self._database, self.bound.id)}
        lag, failing = self._lag(sources)
        return RunSnapshot(
            progress,
            batch,
            now - max(acked, self._first_seen_at(_anything(sources, lag), failing, now)),
            sources,
            {row["id"]: row for row in consumer_rows(self._database, self.bound.id)},
            newest(self._database, self.bound.id, DeadLetterQuery(), _NEWEST),
            self._reasons(),
            self._open_before,
            lag,
            failing,
            offset_gaps(self._database, self.bound.id),
            events(self._database, self.bound.id, _NEWEST),
        )

    def _reasons(self) -> list[dict[str, Any]]:
        return reasons(self._database, self.bound.id, DeadLetterQuery())

    def _first_seen_at(self, waiting: bool, failing: list[str], now: float) -> float:
        """Return when records were first seen waiting; a time long ago if nothing waits."""
        if waiting:
            self._first_seen = now if self._first_seen is None else self._first_seen
        elif not failing:
            self._first_seen = None
        return 0.0 if self._first_seen is None else self._first_seen

    def _lag(self, sources: dict[str, dict[str, Any]]) -> tuple[dict[str, tuple[int, str]], list[str]]:
        """Return the lag of each source that can determine it, and the sources that failed or did not answer."""
        found: dict[str, tuple[int, str]] = {}
        failing: list[str] = []
        known = {name: row["position"] for name, row in sources.items()}
        for source_node in self.pipeline.sources:
            try:
                amount = answer_within(source_node.source, partial(source_node.lag, known), IN_RUN)
            except Exception:  # noqa: BLE001  # a source that is away is the engine's business; here its lag is unknown
                amount = None
                failing.append(source_node.id)
            if amount is not None:
                found[source_node.id] = (amount, source_node.source.lag_unit)
        return found, failing


_PLOTS = 10
_LONGEST_TEXT = 200
_LONGEST_POSITION = 1_000

Metadata = dict[str, Any]


def materializations(
    bound: BoundPipeline, keys: AssetKeys, snapshot: RunSnapshot, contents: Mapping[str, Metadata]
) -> Iterator[dg.AssetMaterialization]:
    """Yield one event per asset, upstream first and the acks last: otherwise Dagster shows some as out of date."""
    for source in bound.config.sources:
        yield dg.AssetMaterialization(keys.of(source.id), metadata=_source(source.id, snapshot))
    for destination in bound.config.destinations:
        metadata = {**_destination(destination.id, snapshot), **contents.get(destination.id, {})}
        yield dg.AssetMaterialization(keys.of(destination.id), metadata=metadata)
    yield dg.AssetMaterialization(keys.of(DEAD_LETTERS), metadata=_dead_letters(snapshot))
    yield acks_materialization(keys, snapshot)


def acks_materialization(keys: AssetKeys, snapshot: RunSnapshot) -> dg.AssetMaterialization:
    """Return the event of the acks only."""
    return dg.AssetMaterialization(keys.of(ACKS), metadata=_acks(snapshot))


def _source(source: str, snapshot: RunSnapshot) -> Metadata:
    row = snapshot.sources.get(source, {})
    lag = snapshot.lag.get(source)
    return {
        "records_read": snapshot.progress.sources.get(source, 0),
        "records_read_all_runs": row.get("records", 0),
        "position": _position(row.get("position")),
        **({f"lag_{lag[1]}": lag[0]} if lag else {}),
    }


def _destination(destination: str, snapshot: RunSnapshot) -> Metadata:
    return {
        "records_delivered": snapshot.progress.delivered.get(destination, 0),
        "records_delivered_all_runs": snapshot.consumers.get(destination, {}).get("delivered", 0),
        "batch_seconds": round(snapshot.batch_seconds, 3),
    }


def _dead_letters(snapshot: RunSnapshot) -> Metadata:
    return {
        "open": snapshot.open,
        "open_growth": snapshot.open - snapshot.open_before,
        "records_dead_lettered": snapshot.progress.dead_lettered,
        "records_dead_lettered_all_runs": snapshot.consumers.get(DEAD_LETTERS, {}).get("delivered", 0),
        "newest": _newest(snapshot.letters),
        "nacks_by_reason": _reasons(snapshot.progress.nacked_by),
        **open_by_reason(snapshot.reasons),
    }


def open_by_reason(reasons: list[dict[str, Any]]) -> Metadata:
    """Return a plottable number per reason, for the most frequent ones."""
    return {f"open: {row['node']} {row['code']}": row["letters"] for row in reasons[:_PLOTS]}


def _acks(snapshot: RunSnapshot) -> Metadata:
    progress = snapshot.progress
    return {
        "records_read": progress.read,
        "records_acked": progress.acked,
        "records_filtered": progress.filtered,
        "records_nacked": progress.nacked,
        "records_dead_lettered": progress.dead_lettered,
        "batch_seconds": round(snapshot.batch_seconds, 3),
        "steps": progress.steps,
        **_lags(snapshot),
        "positions": _position({source: row["position"] for source, row in snapshot.sources.items()}),
        "nacks_by_reason": _reasons(progress.nacked_by),
        "history": _history(snapshot.history),
    }


def _history(events: list[Event]) -> dg.TableMetadataValue:
    rows: list[dict[str, str | int | float]] = [
        {"time": when(event.at_ns), "event": said(event.event, event.detail)} for event in reversed(events)
    ]
    return _table({"time": "string", "event": "string"}, rows)


def _lags(snapshot: RunSnapshot) -> Metadata:
    """Return the total lag per unit: bytes and records can't be added. Logged records that wait count as well."""
    total = {"lag_records": snapshot.logged} if snapshot.logged else {}
    for amount, unit in snapshot.lag.values():
        total[f"lag_{unit}"] = total.get(f"lag_{unit}", 0) + amount
    return total


def _position(value: Any) -> Any:
    """Return a position as metadata. Numbers plot; other positions may be long, and every event carries them."""
    if isinstance(value, int | float | str | None):
        return _cell(value)
    text = json.dumps(value)
    if len(text) > _LONGEST_POSITION:
        return dg.MetadataValue.text(f"{text[:_LONGEST_POSITION]}…")
    return dg.MetadataValue.json(value)


def _reasons(nacked_by: dict[str, int]) -> dg.TableMetadataValue:
    rows: list[dict[str, str | int | float]] = []
    for reason, number in sorted(nacked_by.items(), key=lambda item: -item[1]):
        node, _, code = reason.rpartition(" ")
        rows.append({"node": node, "code": code, "records": number})
    return _table({"node": "string", "code": "string", "records": "int"}, rows)


def _newest(letters: list[dict[str, Any]]) -> dg.TableMetadataValue:
    # the UI cuts off wide tables at the right
    names = ("message", "node", "source", "offset", "position", "code")
    rows = [
        {"time": when(row["at_ns"]), **{name: _cell(row[name]) for name in names}, "id": letter_id(row)}
        for row in letters
    ]
    kinds = {name: "int" if name == "offset" else "string" for name in ("time", *names, "id")}
    return _table(kinds, rows)


def _table(columns: dict[str, str], rows: list[dict[str, str | int | float]]) -> dg.TableMetadataValue:
    # the columns of an empty table can't be inferred
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema)


def _cell(value: Any) -> str | int | float:
    return value if isinstance(value, int | float) else str(value)[:_LONGEST_TEXT]
