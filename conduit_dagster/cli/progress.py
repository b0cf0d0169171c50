"""Progress of running pipelines, its live table on a terminal, and the results of runs."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conduit_dagster.cli.terminal import print_error, styled, table
from conduit_dagster.cli.verb import FAILED, OK, Outcome, count
from conduit_dagster.metrics.source_lag import lag_amount
from conduit_dagster.readable import when
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.sdk import Source
from conduit_dagster.secret_values import hide

if TYPE_CHECKING:
    from conduit_dagster.config.findings import Finding
    from conduit_dagster.engine.bound_pipeline import BoundPipeline
    from conduit_dagster.engine.report import RunProgress, RunResult, StepReport

_WINDOW = 5.0
_COLUMNS = ("pipeline", "status", "records", "records/s", "acked", "dead letters", "lag")
_UNITS = ("B", "kB", "MB", "GB", "TB")


class Row:
    """Counters of one pipeline. Written by its own thread, read by the display."""

    def __init__(self, bound: BoundPipeline) -> None:
        self.id = bound.id
        self.status = PipelineStatus.RUNNING
        self._note = ""
        self._sources = {node.id: node.source for node in bound.compiled.sources}
        self._progress: RunProgress | None = None
        self._lag = ""
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def observe(self, step: StepReport, progress: RunProgress) -> None:
        """Record a finished step. Runs in the pipeline's thread, the only one that may query its sources."""
        self.status = PipelineStatus.RUNNING
        self._progress = progress
        self._lag = total_lag(self._sources, progress)

    def tell(self, result: RunResult) -> None:
        """Record the end of an attempt, or the beginning of the next one."""
        restart = result.restart if result.status == PipelineStatus.RECOVERING else None
        self._note = "" if restart is None else f", restart {restart.attempt} at {when(restart.at_ns)}"
        self.status = result.status

    def cells(self) -> list[object]:
        """Return the current cells of the row."""
        progress = self._progress
        if progress is None:
            return [self.id, self._shown(), "0", "0", "0", "0", ""]
        numbers = (progress.read, self._rate(progress.read), progress.acked, progress.dead_lettered)
        return [self.id, self._shown(), *(f"{number:,}" for number in numbers), self._lag]

    def _shown(self) -> Text:
        return styled(self.status, self.status + self._note)

    def _rate(self, read: int) -> int:
        now = time.monotonic()
        self._seen.append((now, read))
        while len(self._seen) > 2 and self._seen[1][0] < now - _WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        return round((read - before) / max(now - since, 0.001))


def total_lag(sources: dict[str, Source], progress: RunProgress) -> str:
    """Return the lag of all sources by unit; empty if any source doesn't know its lag."""
    sums: dict[str, int] = {}
    for name, source in sources.items():
        lag = lag_amount(source, progress.positions[name]) if name in progress.positions else None
        if lag is None:
            return ""
        sums[source.lag_unit] = sums.get(source.lag_unit, 0) + lag
    return ", ".join(amount(number, unit) for unit, number in sums.items())


def known_lag(facts: Mapping[str, Any]) -> str:
    """Format a known lag: ``1.5 MB``; ``1.5 MB, 12 s`` where its age is known and it is not zero."""
    text = amount(facts["lag"], facts["lag_unit"])
    return f"{text}, {facts['lag_seconds']:,.0f} s" if facts["lag_seconds"] else text


def amount(number: int, unit: str) -> str:
    """Format an amount: ``1.5 MB``, ``1,200 records``, ``1 record``; the unit is a plural."""
    if unit != "bytes":
        return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"
    size, power = float(number), 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{number} B"


@contextmanager
def live(rows: Iterable[Row], console: Console, errors_too: bool) -> Generator[None]:
    """Show the rows until the end; ``errors_too``: stderr is also a terminal and would tear the table."""
    rows = list(rows)

    def render() -> Table:
        return table(_COLUMNS, [row.cells() for row in rows])

    with Live(
        get_renderable=render,
        console=console,
        refresh_per_second=4,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=errors_too,
    ):
        yield


def finished(results: Sequence[RunResult], findings: Sequence[Finding], forced_exit: int | None) -> Outcome:
    """Return the outcome of a run. Its error is that of the first failed pipeline."""
    failed = [result for result in results if result.error is not None]
    error = failed[0].error if failed else None
    return Outcome(
        _summary(results, failed),
        {
            "pipelines": [result.as_json() for result in results],
            "findings": [finding.as_json() for finding in findings],
        },
        forced_exit if forced_exit is not None else FAILED if failed else OK,
        error,
        lambda console: _show(console, results),
    )


def _summary(results: Sequence[RunResult], failed: Sequence[RunResult]) -> str:
    pipelines = count(len(results), "pipeline")
    if failed:
        return f"{len(failed)} of {pipelines} failed: {', '.join(result.pipeline for result in failed)}"
    read = sum(result.progress.read for result in results)
    return f"{pipelines} ended: {count(read, 'record')} read"


def _show(console: Console, results: Sequence[RunResult]) -> None:
    for result in results:
        show_result(console, result)


def show_result(console: Console, result: RunResult) -> None:
    """Print a few lines about one pipeline."""
    progress = result.progress
    console.print(Text.assemble((result.pipeline, "bold"), ": ", styled(result.status, result.ending)))
    acked = f"{progress.acked:,} acked (of them {progress.filtered:,} filtered)"
    nacked = f"{progress.nacked:,} nacked, {progress.dead_lettered:,} dead-lettered"
    console.print(f"  records     {progress.read:,} read, {acked}, {nacked}")
    _print_counts(console, "delivered", progress.delivered)
    _print_counts(console, "filtered by", progress.filtered_by)
    _print_counts(console, "nacked by", progress.nacked_by)
    if result.hung:
        console.print(f"  ended by force after delivery.shutdown-timeout, still in {result.hung}")
        console.print("  what is open is finished at the next start: conduit-dagster run")
    if result.error is not None:
        print_error(console, result.error.fields(), "  ")
        if result.story is not None:
            console.print(f"    since:  {result.story.since}")
            console.print(f"    safe:   {result.story.safe}")
            history = f"conduit-dagster pipelines history {shlex.quote(result.pipeline)}"
            console.print(f"    then:   run it again; {history} shows what happened before")


def _print_counts(console: Console, label: str, counts: Mapping[str, int]) -> None:
    if counts:
        console.print(f"  {label:<11} " + ", ".join(f"{name} {number:,}" for name, number in counts.items()))


def print_traces(results: Sequence[RunResult]) -> None:
    """Print the traceback of each error, in this process and in the Spark task, for ``--verbose``."""
    for result in results:
        error: Any = result.error
        if error is not None:
            print(f"{result.pipeline}: {error.code}", file=sys.stderr)
            print(hide("".join(traceback.format_exception(error))), file=sys.stderr)
