"""``doctor``: check all requirements of a run, with a fix for each missing one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from conduit_dagster.cli.verb import ENVIRONMENT, OK, AsJson, Outcome, Paths, perform
from conduit_dagster.recovery.errors import FatalError

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.cli.checks import Check

Deep = Annotated[
    bool, typer.Option("--deep", help="Start Spark, run a task, and try sources and destinations of running pipelines.")
]


def doctor(paths: Paths = None, deep: Deep = False, as_json: AsJson = False) -> None:
    """Check Python, packages, extras, Java, Spark, state store, staging, disk, pipelines, sources and destinations.

    With files: check the sources and destinations of their pipelines: servers, rights, tables, topics, slots.
    """
    perform("doctor", as_json, lambda: _examined(deep, paths or []))


def _examined(deep: bool, paths: list[str]) -> Outcome:
    from conduit_dagster.cli.checks import all_checks
    from conduit_dagster.cli.terminal import count

    checks = list(all_checks(deep, paths))
    failed = [check for check in checks if check.level == "fail"]
    doubtful = sum(check.level == "warn" for check in checks)
    summary = f"{len(checks)} checks: {len(failed)} failed, {count(doubtful, 'warning')}"
    error = _error(failed) if failed else None
    return Outcome(
        summary,
        {"checks": [check.as_json() for check in checks]},
        ENVIRONMENT if failed else OK,
        None if error is None else error.fields(),
        lambda console: _show(console, checks),
    )


def _error(failed: list[Check]) -> FatalError:
    names = ", ".join(check.name for check in failed)
    return FatalError(f"not ready: {names} failed", code="environment.unfit", fix=failed[0].fix)


def _show(console: Console, checks: list[Check]) -> None:
    from rich.text import Text

    from conduit_dagster.cli.terminal import styled

    for check in checks:
        console.print(Text.assemble(styled(check.level, f"{check.level:<5}"), f" {check.name:<12} {check.message}"))
        if check.fix and check.level != "ok":
            console.print(f"      {'':<12} {check.fix}")
