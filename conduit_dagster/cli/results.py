"""How runs ended: for people, and in the envelope."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from conduit_dagster.cli.outcome import FAILED, OK, Outcome, error_fields
from conduit_dagster.cli.terminal import count, print_error, styled

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.config.findings import Finding
    from conduit_dagster.engine.report import RunResult


def finished(
    results: Sequence[RunResult], findings: Sequence[Finding], forced_exit: int | None, stopped: bool
) -> Outcome:
    """The outcome of a run. Its error is the first one of a pipeline."""
    failed = [result for result in results if result.error is not None]
    error = failed[0].error if failed else None
    return Outcome(
        _summary(results, failed),
        {
            "pipelines": [result.as_json() for result in results],
            "findings": [finding.as_json() for finding in findings],
        },
        forced_exit if forced_exit is not None else FAILED if failed else OK,
        None if error is None else error_fields(error),
        lambda console: _show(console, results, stopped),
    )


def _summary(results: Sequence[RunResult], failed: Sequence[RunResult]) -> str:
    pipelines = count(len(results), "pipeline")
    if failed:
        return f"{len(failed)} of {pipelines} failed: {', '.join(result.pipeline for result in failed)}"
    read = sum(result.progress.read for result in results)
    return f"{pipelines} ended: {count(read, 'record')} read"


def _show(console: Console, results: Sequence[RunResult], stopped: bool) -> None:
    for result in results:
        show_result(console, result, stopped)


def show_result(console: Console, result: RunResult, stopped: bool = False) -> None:
    """A few lines about one pipeline. ``stopped``: somebody asked for its end."""
    progress = result.progress
    console.print(Text.assemble((result.pipeline, "bold"), ": ", styled(result.status, _status(result, stopped))))
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
        print_error(console, error_fields(result.error), "  ")


def _status(result: RunResult, stopped: bool) -> str:
    if result.status != "stopped":
        return result.status
    return f"stopped by the {result.reason}" if stopped else "stopped, its sources are drained"


def _print_counts(console: Console, label: str, counts: Mapping[str, int]) -> None:
    if counts:
        console.print(f"  {label:<11} " + ", ".join(f"{name} {number:,}" for name, number in counts.items()))


def print_traces(results: Sequence[RunResult]) -> None:
    """For ``--verbose``: where each error came from, as Python saw it here and in the Spark task."""
    for result in results:
        error: Any = result.error
        if error is not None:
            print(f"{result.pipeline}: {error.code}", file=sys.stderr)
            print("".join(traceback.format_exception(error)), file=sys.stderr)
