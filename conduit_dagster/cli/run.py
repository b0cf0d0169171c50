"""``run``: run pipelines in this process."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from conduit_dagster.cli.metrics import RunAddress, run_metrics
from conduit_dagster.cli.verb import (
    INVALID,
    AcceptNewState,
    AsJson,
    Outcome,
    Paths,
    count,
    current_project,
    perform,
    usage_error,
)
from conduit_dagster.recovery.errors import ConduitError, FatalError

if TYPE_CHECKING:
    from conduit_dagster.config.findings import Finding
    from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue

Once = Annotated[bool, typer.Option("--once", help="Read what the sources hold now, then stop.")]
NoServer = Annotated[
    bool, typer.Option("--no-server", help="Start Spark in this process, and leave none behind for the next command.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show Spark's log and where errors came from.")]


def run(
    paths: Paths = None,
    once: Once = False,
    verbose: Verbose = False,
    no_server: NoServer = False,
    metrics: RunAddress = None,
    accept_new: AcceptNewState = False,
    as_json: AsJson = False,
) -> None:
    """Run pipelines until stopped or drained. Without PATH: those of the project with status: running."""
    asked = _Asked(once, verbose, not no_server, as_json)
    perform("run", as_json, lambda: _run(paths or [], asked, metrics, accept_new))


class _Asked(NamedTuple):
    """How to run: options of the command."""

    once: bool
    verbose: bool
    server: bool
    as_json: bool


def _run(paths: list[str], asked: _Asked, metrics: str | None, accept_new: bool) -> Outcome:
    from conduit_dagster.cli.terminal import configure_logs
    from conduit_dagster.engine.bound_pipeline import open_catalogue

    project = current_project().accepting_new_state(accept_new)
    # before any connector is created: a bound logger keeps its configuration
    configure_logs(project.settings.log)
    catalogue = open_catalogue(project, paths)
    findings = relevant(catalogue, named=bool(paths))
    chosen = [bound for bound in catalogue.bound if paths or bound.config.status == "running"]
    missing = not paths and not project.has_pipelines
    obstacle = _nothing(catalogue, paths) if missing else _obstacle(catalogue, findings, chosen, paths)
    _print([] if missing else findings, asked.as_json)
    if obstacle is not None:
        result = {"pipelines": [], "findings": [finding.as_json() for finding in findings]}
        return Outcome(obstacle.message, result, INVALID, obstacle)
    # a --once run may run beside a long one, which holds the project's address
    address = metrics or (None if asked.once else project.settings.metrics.listen)
    served, once, verbose, server, as_json = run_metrics(address), *asked
    from conduit_dagster.cli.progress import finished, print_traces
    from conduit_dagster.cli.running import run_together

    ended = run_together(project, chosen, once, verbose, as_json, served, server)
    if verbose:
        print_traces(ended.results)
    return finished(ended.results, findings, ended.forced_exit)


def relevant(catalogue: Catalogue, named: bool) -> list[Finding]:
    """Return the findings relevant to a run: if no path is named, those of stopped pipelines are not."""
    if named:
        return catalogue.findings
    stopped = [parsed for parsed in catalogue.loaded.pipelines if parsed.config.status == "stopped"]
    passed = [finding for parsed in stopped for finding in parsed.findings]
    return [finding for finding in catalogue.findings if not any(finding is one for one in passed)]


def _print(findings: list[Finding], as_json: bool) -> None:
    if findings and not as_json:
        from conduit_dagster.cli.terminal import console
        from conduit_dagster.cli.validate import show_findings

        show_findings(console(sys.stderr), findings)


def _obstacle(
    catalogue: Catalogue, findings: list[Finding], chosen: list[BoundPipeline], paths: list[str]
) -> ConduitError | None:
    """Return the error that prevents the whole run, or None: either all pipelines start, or none does."""
    errors = [finding for finding in findings if finding.is_error]
    if errors:
        # each finding is shown separately
        message = f"nothing was started: {count(len(errors), 'error')} in the pipelines' files"
        fix = f"fix what is listed; {shlex.join(['conduit-dagster', 'validate', *paths])} shows it again"
        return FatalError(message, code="validation.failed", fix=fix)
    for bound in chosen:
        if refusal := bound.refusal():
            return refusal
    return None if chosen else _nothing(catalogue, paths)


def _nothing(catalogue: Catalogue, paths: list[str]) -> ConduitError:
    if catalogue.loaded.pipelines:
        fix = "set status: running in its file, or name the file: conduit-dagster run PATH"
        return usage_error("every pipeline has status: stopped", "nothing_to_run", fix)
    fix = "name a file with pipelines" if paths else "name a file, or begin with conduit-dagster init"
    places = ", ".join(paths) or catalogue.project.pipelines_path
    return usage_error(f"there is no pipeline to run in {places}", "nothing_to_run", fix)
