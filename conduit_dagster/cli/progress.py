"""What running pipelines report, and the live table of it on a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from conduit_dagster.cli.terminal import styled, table
from conduit_dagster.sdk import Source

if TYPE_CHECKING:
    from rich.text import Text

    from conduit_dagster.engine.planner import BoundPipeline
    from conduit_dagster.engine.report import Progress, RunResult, StepReport

_WINDOW = 5.0
_COLUMNS = ("pipeline", "status", "records", "records/s", "acked", "dead letters", "lag")
_UNITS = ("B", "kB", "MB", "GB", "TB")


class Row:
    """One pipeline's numbers. Its own thread writes them, the display reads them."""

    def __init__(self, bound: BoundPipeline) -> None:
        self.id = bound.id
        self.status = "running"
        self._note = ""
        self._sources = {inlet.id: inlet.source for inlet in bound.compiled.sources}
        self._progress: Progress | None = None
        self._lag = ""
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def observe(self, step: StepReport, progress: Progress) -> None:
        """Takes a finished step in. Runs in the pipeline's thread, the only one that may ask its sources."""
        self.status = "running"
        self._progress = progress
        self._lag = total_lag(self._sources, progress)

    def tell(self, result: RunResult) -> None:
        """Takes the end of an attempt in, or the beginning of the next one."""
        restart = result.restart if result.status == "recovering" else None
        at = None if restart is None else datetime.fromtimestamp(restart.at_ns / 1e9).astimezone()
        note = "" if restart is None or at is None else f", restart {restart.attempt} at {at:%H:%M:%S}"
        self.status = result.status
        self._note = note

    def cells(self) -> list[object]:
        """The row as shown now."""
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


def total_lag(sources: dict[str, Source], progress: Progress) -> str:
    """The lag of all sources by unit; empty where one doesn't know it."""
    sums: dict[str, int] = {}
    for name, source in sources.items():
        lag = lag_of(source, progress.positions[name]) if name in progress.positions else None
        if lag is None:
            return ""
        sums[source.lag_unit] = sums.get(source.lag_unit, 0) + lag
    return ", ".join(amount(number, unit) for unit, number in sums.items())


def lag_of(source: Source, position: object) -> int | None:
    """A source's lag; None where it doesn't know, or fails at it: a number to look at must not end a run."""
    try:
        return source.lag(position)
    except Exception:  # noqa: BLE001  # any plugin's code
        return None


def amount(number: int, unit: str) -> str:
    """``1.5 MB``, ``1,200 records``."""
    if unit != "bytes":
        return f"{number:,} {unit}"
    size, power = float(number), 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{number} B"


@contextmanager
def live(rows: Iterable[Row], console: Console, errors_too: bool) -> Generator[None]:
    """Shows the rows until the end; ``errors_too``: stderr is a terminal too and would tear the table."""
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
