"""``validate``, ``lint`` and ``doctor``: what a run would refuse, advice, and missing requirements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from conduit_dagster.cli.verb import ENVIRONMENT, INVALID, OK, Outcome, Paths, count, current_catalogue, verb
from conduit_dagster.recovery.errors import FatalError

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.cli.place_checks import Check
    from conduit_dagster.config.findings import Finding
    from conduit_dagster.engine.bound_pipeline import Catalogue

Strict = Annotated[bool, typer.Option("--strict", help="Unknown keys and settings are errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks: of plugins that fail, and of checks that do.")]
StrictLint = Annotated[bool, typer.Option("--strict", help="Fail on warnings and advice too.")]


@verb("validate")
def validate(paths: Paths = None, strict: Strict = False, debug: Debug = False) -> Outcome:
    """Find everything that a run would refuse, offline. Without PATH: the project's pipelines."""
    catalogue = current_catalogue(paths or [], strict)
    return judged(catalogue, catalogue.findings, debug=debug)


@verb("lint")
def lint(paths: Paths = None, strict: StrictLint = False) -> Outcome:
    """Validate, and print advice. Without PATH: the project's pipelines."""
    from conduit_dagster.cli.advice import advice
    from conduit_dagster.config.findings import by_place

    catalogue = current_catalogue(paths or [], strict)
    findings = by_place([*catalogue.findings, *advice(catalogue.loaded.pipelines)])
    return judged(catalogue, findings, tolerant=not strict)


def judged(catalogue: Catalogue, findings: list[Finding], tolerant: bool = True, debug: bool = False) -> Outcome:
    """Return the outcome of checking files; ``tolerant`` lets warnings pass, ``debug`` shows tracebacks."""
    bad = [finding for finding in findings if finding.is_error or not tolerant]
    summary = _summary(catalogue, findings)
    error = FatalError(summary, code="validation.failed", fix="fix what is listed") if bad else None
    return Outcome(
        summary,
        {"pipelines": _pipelines(catalogue), "findings": [finding.as_json(debug) for finding in findings]},
        INVALID if bad else OK,
        error,
        lambda console: show_findings(console, findings, debug),
    )


def show_findings(console: Console, findings: list[Finding], debug: bool = False) -> None:
    """Print every finding with its place and fix; with ``debug`` also its traceback."""
    from conduit_dagster.cli.terminal import styled

    for finding in findings:
        first, *more = finding.render(debug).split("\n")
        place, _, text = first.partition(f" {finding.severity} ")
        console.print(place, styled(finding.severity), text)
        for line in more:
            console.print(line)


def _pipelines(catalogue: Catalogue) -> list[dict[str, object]]:
    runnable = {bound.id for bound in catalogue.bound}
    return [
        {"id": parsed.config.id, "file": parsed.file, "valid": parsed.config.id in runnable}
        for parsed in catalogue.loaded.pipelines
    ]


def _summary(catalogue: Catalogue, findings: list[Finding]) -> str:
    files, pipelines = len(catalogue.loaded.files), len(catalogue.loaded.pipelines)
    errors = sum(finding.is_error for finding in findings)
    looked_at = f"{count(pipelines, 'pipeline')} in {count(files, 'file')}"
    return f"{looked_at}: {count(errors, 'error')}, {count(len(findings) - errors, 'warning')}"


Deep = Annotated[
    bool, typer.Option("--deep", help="Start Spark, run tasks, and try sources and destinations of running pipelines.")
]


@verb("doctor")
def doctor(paths: Paths = None, deep: Deep = False) -> Outcome:
    """Check Python, packages, extras, Java, Spark, state store, staging, disk, pipelines, sources and destinations.

    With files: check the sources and destinations of their pipelines: servers, rights, tables, topics, slots.
    """
    from conduit_dagster.cli.checks import all_checks

    checks = list(all_checks(deep, paths or []))
    failed = [check for check in checks if check.level == "fail"]
    doubtful = sum(check.level == "warn" for check in checks)
    summary = f"{len(checks)} checks: {len(failed)} failed, {count(doubtful, 'warning')}"
    error = _unfit(failed) if failed else None
    return Outcome(
        summary,
        {"checks": [check.as_json() for check in checks]},
        ENVIRONMENT if failed else OK,
        error,
        lambda console: _show_checks(console, checks),
    )


def _unfit(failed: list[Check]) -> FatalError:
    names = ", ".join(check.name for check in failed)
    return FatalError(f"not ready: {names} failed", code="environment.unfit", fix=failed[0].fix)


def _show_checks(console: Console, checks: list[Check]) -> None:
    from rich.text import Text

    from conduit_dagster.cli.terminal import styled

    for check in checks:
        console.print(Text.assemble(styled(check.level, f"{check.level:<5}"), f" {check.name:<12} {check.message}"))
        if check.fix and check.level != "ok":
            console.print(f"      {'':<12} {check.fix}")
