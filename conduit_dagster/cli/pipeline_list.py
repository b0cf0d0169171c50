"""The list of all pipelines: facts from their files and the state store, and the lag of their sources."""

from __future__ import annotations

import math
import queue
import shlex
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conduit_dagster.cli.progress import amount
from conduit_dagster.cli.terminal import ago, due, print_table, styled
from conduit_dagster.cli.verb import Outcome, count
from conduit_dagster.engine.registering import attach_kept_to_look
from conduit_dagster.processes import is_dead
from conduit_dagster.readable import when
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.state import overview
from conduit_dagster.state.claim import existing_store
from conduit_dagster.state.dead_letters import open_counts
from conduit_dagster.state.recovery_state import NEVER, never_began, recovery_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa
    from rich.console import Console

    from conduit_dagster.config.findings import Finding
    from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue

Facts = dict[str, Any]
_LAG_SECONDS = 0.3
"""Seconds without an answer of any source after which the list waits for none; they answer later on a busy machine."""
_LAG_LONGEST = 3.0
"""Seconds after which it waits for none in any case."""


def list_pipelines(catalogue: Catalogue, ask_lag: bool | None, paths: Sequence[str] = ()) -> Outcome:
    """Return the list of all pipelines. ``ask_lag``: None asks the sources for their lag within a short time.

    ``paths``: the files and folders of the catalogue, if they were named.
    """
    store = existing_store(catalogue.project)
    sources = _source_rows(store)
    seconds = None if ask_lag else _LAG_SECONDS
    lags = None if ask_lag is False else _ask_lags(catalogue.bound, store, sources, seconds)
    known = {} if lags is None else lags.known
    rows = [{**row, "lag": known.get(row["id"])} for row in listed(catalogue, store, sources)]
    validate = shlex.join(["conduit-dagster", "validate", *paths])
    summary = _summary(len(rows), len(catalogue.findings), 0 if lags is None else len(lags.open), validate)
    nameless = "" if paths else "no file any more"
    return Outcome(summary, {"pipelines": rows}, show=lambda console: _show_list(console, rows, lags, nameless))


def _summary(pipelines: int, findings: int, lags_open: int, validate: str) -> str:
    found = f", {count(findings, 'finding')}: {validate} shows them" if findings else ""
    unasked = f"; the lag of {lags_open:,} was not found out in time: --lag waits for all" if lags_open else ""
    return count(pipelines, "pipeline") + found + unasked


def _show_list(console: Console, rows: list[dict[str, Any]], lags: _LagsFound | None, nameless: str) -> None:
    now_ns = time.time_ns()
    lag = () if lags is None else ("lag",)
    columns = ("id", "status", "starts", "records", *lag, "dead letters", "last activity", "findings", "file", "error")
    cells = [
        (
            row["id"],
            styled(row["status"] or "", status_text(row, now_ns)),
            row["starts"] or "",
            f"{row['records']:,}",
            *([] if lags is None else ["?" if row["id"] in lags.open else _lag_text(row["lag"])]),
            f"{row['dead_letters']:,}",
            ago(row["active_ns"], now_ns),
            row["findings"],
            _short(row["file"]) if row["file"] else nameless,
            (row["error"] or {}).get("code", ""),
        )
        for row in rows
    ]
    if cells:
        print_table(console, columns, cells)


def _short(file: str) -> str:
    """Return a path as it would be typed here."""
    here = Path.cwd()
    return str(Path(file).relative_to(here)) if Path(file).is_relative_to(here) else file


def status_text(row: dict[str, Any], now_ns: int) -> str:
    """Return a pipeline's status, with the time until its restart: ``recovering, restart 2 in 40 s``."""
    restart = row["restart"]
    gone = ", its process is gone" if is_abandoned(row["status"], row["owner_alive"], restart) else ""
    if restart is None:
        return f"{row['status'] or 'never ran'}{gone}"
    when = f" {due(restart['at_ns'], now_ns)}" if restart["at_ns"] else ""
    return f"recovering, restart {restart['attempt']}{when}{gone}"


_SourceRows = dict[str, overview.Rows]
"""Rows of sources, by pipeline."""


def _source_rows(store: sa.Engine | None) -> _SourceRows:
    """Return position and counts of each source, of every pipeline that ran."""
    return {} if store is None else overview.every_source_row(store)


def listed(catalogue: Catalogue, store: sa.Engine | None, sources: _SourceRows | None = None) -> list[Facts]:
    """Return one row per pipeline in the files, then one per pipeline that only the store has; no deleted ones.

    ``sources``: rows of sources, if already read.
    """
    known = {} if store is None else status_rows(store)
    stored = [] if store is None else overview.stored_names(store)
    sources = _source_rows(store) if sources is None else sources
    names = dict.fromkeys([*(parsed.config.id for parsed in catalogue.loaded.pipelines), *stored])
    letters = {} if store is None else open_counts(store)
    counts = {
        name: _Counts(sum(source["records"] for source in sources.get(name, ())), letters.get(name, 0))
        for name in names
    }
    rows = list[Facts]()
    for parsed in catalogue.loaded.pipelines:
        config = parsed.config
        own = {"starts": config.status, "findings": len(parsed.findings), "file": parsed.file}
        rows.append({**_row(config.id, known.pop(config.id, None), counts), **own})
    for name in (name for name in stored if name in known):
        broken = broken_file(known[name], catalogue)
        file = broken[0].file if broken else None
        rows.append({**_row(name, known[name], counts), "findings": len(broken), "file": file})
    return rows


class _Counts(NamedTuple):
    """Counters of one pipeline."""

    read: int
    letters: int
    """Open dead letters."""


def broken_file(row: Facts, catalogue: Catalogue) -> list[Finding]:
    """Return the findings of the file that a pipeline came from, or of its folder, where it can't be found in it."""
    root = catalogue.project.root
    return [one for one in catalogue.loaded.findings if Path(root, row["file"]).is_relative_to(Path(root, one.file))]


def _row(name: str, row: Facts | None, counts: Mapping[str, _Counts]) -> Facts:
    read, letters = counts[name]
    numbers: Facts = {
        "records": read,
        "dead_letters": letters,
        "active_ns": 0 if row is None or never_began(row, row["recovery"]) else row["updated_ns"],
    }
    return {"id": name, **status_of(row), "starts": None, **numbers, "error": None if row is None else row["error"]}


def status_rows(store: sa.Engine) -> dict[str, Facts]:
    """Return the stored row of each pipeline, with its recovery, by id."""
    recoveries = recovery_rows(store)
    return {
        name: {**row, "recovery": recoveries.get(name, NEVER)} for name, row in overview.pipeline_rows(store).items()
    }


def _restart(row: Facts) -> Facts | None:
    """Return the restart that is pending or in progress, or None."""
    state = row["recovery"]
    if row["status"] != PipelineStatus.RECOVERING:
        return None
    due = state.restart_at_ns
    at = when(due) if due else None
    return {"attempt": state.past.attempt, "at": at, "at_ns": due, "cause": state.cause}


def status_of(row: Facts | None) -> Facts:
    """Return status, reason, whether its process is alive, and the restart of a pipeline."""
    if row is None or never_began(row, row["recovery"]):
        return {"status": None, "reason": "", "owner_alive": None, "restart": None}
    return {
        "status": row["status"],
        # that of a run is about what follows it
        "reason": "" if row["status"] in (PipelineStatus.RUNNING, PipelineStatus.RECOVERING) else row["reason"],
        "owner_alive": _owner_alive(row),
        "restart": _restart(row),
    }


def is_abandoned(status: str | None, owner_alive: bool | None, restart: Facts | None) -> bool:
    """Return whether a run counts as under way although its process is certainly gone.

    A process that is gone may also have been a command, which leaves a pipeline as it was.
    """
    runs = status == PipelineStatus.RUNNING or (restart is not None and not restart["at_ns"])
    return runs and owner_alive is False


def abandoned_names(store: sa.Engine) -> list[str]:
    """Return the pipelines with such a run."""
    found = {name: status_of(row) for name, row in status_rows(store).items()}
    return [name for name, one in found.items() if is_abandoned(one["status"], one["owner_alive"], one["restart"])]


def _owner_alive(row: Facts) -> bool | None:
    owner = row["owner"]
    if owner is None:
        # a run gives its lease back after it has stored its end
        return False if row["status"] == PipelineStatus.RUNNING else None
    return not is_dead(owner)


_Lag = dict[str, int]
"""An amount by unit."""
_PATIENCE = 0.05
"""Seconds without an answer after which another thread starts beside the waiting ones: threads slow down quick sources.
"""
_THREADS = 32


class _LagsFound(NamedTuple):
    """Lag of the pipelines, as far as their sources have answered."""

    known: dict[str, _Lag | None]
    """By pipeline; None if a source can't determine it."""
    open: set[str]
    """Pipelines that were not queried, or whose sources have not answered yet."""


def _ask_lags(
    pipelines: Sequence[BoundPipeline],
    store: sa.Engine | None,
    positions: Mapping[str, list[dict[str, Any]]],
    seconds: float | None,
) -> _LagsFound:
    """Return the sources' lags that are known once none has answered for ``seconds``; None waits for all of them.

    ``positions``: rows of the sources of each pipeline that ever ran. A hanging thread is abandoned; it does not keep
    the process alive.
    """
    begun = time.monotonic()
    until = math.inf if seconds is None else begun + seconds
    question, known, threads = _Question(pipelines, store, positions), dict[str, _Lag | None](), 0
    asked = {bound.id for bound in pipelines}
    while len(known) < len(asked):
        left = until - time.monotonic()
        try:
            name, lag = question.answers.get(timeout=max(0.0, min(_PATIENCE, left)) if threads else 0)
        except queue.Empty:
            if left <= 0:
                break
            if threads < _THREADS:
                threads += 1
                threading.Thread(target=question.ask, daemon=True, name=f"lag-{threads}").start()
        else:
            known[name] = lag
            if seconds is not None:
                until = max(until, min(time.monotonic() + seconds, begun + _LAG_LONGEST))
    question.is_over.set()
    return _LagsFound(known, asked - known.keys())


class _Question:
    """Pipelines still to be queried, in the order of the list, and the answers."""

    def __init__(
        self,
        pipelines: Sequence[BoundPipeline],
        store: sa.Engine | None,
        positions: Mapping[str, list[dict[str, Any]]],
    ) -> None:
        self.answers: queue.SimpleQueue[tuple[str, _Lag | None]] = queue.SimpleQueue()
        self._left: queue.SimpleQueue[BoundPipeline] = queue.SimpleQueue()
        self.is_over = threading.Event()
        self._store, self._positions = store, positions
        for bound in pipelines:
            self._left.put(bound)

    def ask(self) -> None:
        """Query one pipeline after the other until the list is shown. Several threads may call it."""
        with suppress(queue.Empty):
            while not self.is_over.is_set():
                bound = self._left.get_nowait()
                self.answers.put((bound.id, self._lag(bound)))

    def _lag(self, bound: BoundPipeline) -> _Lag | None:
        """Return the lag of a pipeline; None if one of its sources fails, or can't determine it."""
        with suppress(BaseException):  # any plugin's code; without an answer the list would wait for it
            if self._store is not None:
                attach_kept_to_look(bound.compiled, self._store)
            return self._total(bound)
        return None

    def _total(self, bound: BoundPipeline) -> _Lag | None:
        rows = self._positions.get(bound.id, ())
        known, logged = {row["id"]: row["position"] for row in rows}, sum(row["undelivered"] for row in rows)
        # logged records count as well, although they no longer wait at their source
        total: _Lag = {"records": logged} if logged else {}
        for node in bound.compiled.sources:
            lag = node.lag(known)
            if lag is None:
                return None
            total[node.source.lag_unit] = total.get(node.source.lag_unit, 0) + lag
        return total


def _lag_text(lag: _Lag | None) -> str:
    """Return a pipeline's lag as text: ``12 records, 1.2 MB``, ``none``; empty if unknown."""
    if lag is None:
        return ""
    return ", ".join(amount(number, unit) for unit, number in lag.items() if number) or "none"
