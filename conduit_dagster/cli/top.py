"""``top``: all pipelines of the project, live, wherever they run. It reads the state store only and starts no Spark."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from conduit_dagster.cli.verb import AsJson, Outcome, count, current_catalogue, perform

if TYPE_CHECKING:
    import sqlalchemy as sa
    from rich.table import Table

    from conduit_dagster.engine.bound_pipeline import Catalogue

Facts = dict[str, Any]
_WINDOW: Final = 10.0
"""Seconds over which records per second are counted."""
_COLUMNS: Final = (
    *("pipeline", "status", "records", "read/s"),
    *("delivered", "delivered/s", "dead letters", "last activity"),
)

Interval = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", min=0.2, help="Time between two reads of the state store.")
]
Once = Annotated[bool, typer.Option("--once", help="Print the table once, with the rates of one interval.")]


def top(interval: Interval = 1.0, once: Once = False, as_json: AsJson = False) -> None:
    """Show all pipelines live: status, records per second, open dead letters, last activity. Ctrl-C ends it.

    If stdout is not a terminal, it prints the table once.
    """
    perform("top", as_json, lambda: _top(interval, once or as_json))


def _top(interval: float, once: bool) -> Outcome:
    from conduit_dagster.cli.terminal import console

    rates = _Rates(current_catalogue())
    if not once and console().is_terminal:
        _follow(rates, interval)
        return Outcome("", {})
    rates.rows()
    time.sleep(interval)
    rows = rates.rows()
    return Outcome(count(len(rows), "pipeline"), {"pipelines": rows}, show=lambda console: console.print(_table(rows)))


def _follow(rates: _Rates, interval: float) -> None:
    from rich.live import Live

    from conduit_dagster.cli.terminal import console

    with Live(console=console(), auto_refresh=False, screen=True) as shown:
        try:
            while True:
                shown.update(_table(rates.rows()), refresh=True)
                time.sleep(interval)
        except KeyboardInterrupt:
            return


class _Rates:
    """Rows of the table, with rates over the last polls."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._store: sa.Engine | None = None
        self._seen: dict[str, deque[tuple[float, int, int]]] = {}

    def rows(self) -> list[Facts]:
        """Poll the store, which the first run creates, and return one row per pipeline."""
        from conduit_dagster.cli.pipeline_list import listed
        from conduit_dagster.state.claim import existing_store
        from conduit_dagster.state.overview import delivered_counts

        self._store = self._store or existing_store(self._catalogue.project)
        delivered = {} if self._store is None else delivered_counts(self._store)
        return [self._row(row, delivered.get(row["id"], 0)) for row in listed(self._catalogue, self._store)]

    def _row(self, row: Facts, delivered: int) -> Facts:
        now = time.monotonic()
        seen = self._seen.setdefault(row["id"], deque())
        seen.append((now, row["records"], delivered))
        while len(seen) > 2 and seen[1][0] < now - _WINDOW:
            seen.popleft()
        since, read_before, delivered_before = seen[0]
        seconds = max(now - since, 0.001)
        return {
            **row,
            "read_per_second": round((row["records"] - read_before) / seconds, 1),
            "delivered": delivered,
            "delivered_per_second": round((delivered - delivered_before) / seconds, 1),
        }


def _table(rows: list[Facts]) -> Table:
    from conduit_dagster.cli.pipeline_list import status_text
    from conduit_dagster.cli.terminal import ago, styled, table

    now_ns = time.time_ns()
    return table(
        _COLUMNS,
        [
            (
                row["id"],
                styled(row["status"] or "", status_text(row, now_ns)),
                *(f"{row[name]:,.0f}" for name in ("records", "read_per_second", "delivered", "delivered_per_second")),
                f"{row['dead_letters']:,}",
                ago(row["active_ns"], now_ns),
            )
            for row in rows
        ],
    )
