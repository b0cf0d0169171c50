"""``dry-run`` and ``test``: try a pipeline without running it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.operate import LARGEST
from conduit_dagster.cli.verb import (
    FAILED,
    OK,
    Outcome,
    Paths,
    count,
    current_catalogue,
    current_project,
    usage_error,
    verb,
)
from conduit_dagster.recovery.errors import FatalError

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue
    from conduit_dagster.engine.trial.cases import CaseResult

File = Annotated[str, typer.Argument(metavar="FILE", help="The pipeline's file.")]
Records = Annotated[
    int, typer.Option("--records", metavar="N", min=1, max=LARGEST, help="How many records of each source.")
]
Pipeline = Annotated[
    str | None, typer.Option("--pipeline", metavar="PIPELINE", help="Which pipeline, if the file has several.")
]
Only = Annotated[str, typer.Option("--only", metavar="TEXT", help="Only tests whose name contains this text.")]
Facts = dict[str, Any]


@verb("dry-run")
def dry_run(file: File, records: Records = 5, pipeline: Pipeline = None) -> Outcome:
    """Read the first records of each source and show the output of each processor. Writes to no destination."""
    from conduit_dagster.cli.validate import judged
    from conduit_dagster.engine.trial.trace import dry_run

    catalogue = _opened([file])
    if not catalogue.bound:
        return judged(catalogue, catalogue.findings)
    bound = _chosen(catalogue.bound, pipeline)
    found = [tried._asdict() for tried in dry_run(bound, records)]
    summary = f"{bound.id}: {count(len(found), 'record')} tried, no destination was written to"
    return Outcome(summary, {"pipeline": bound.id, "records": found}, show=lambda console: _show_tried(console, found))


@verb("test")
def test(paths: Paths = None, only: Only = "") -> Outcome:
    """Run the tests of pipeline files; no source or destination is used. Without PATH: those of the project."""
    from conduit_dagster.cli.validate import judged
    from conduit_dagster.engine.trial.cases import run_case

    catalogue = _opened(paths or [])
    if any(finding.is_error for finding in catalogue.findings):
        return judged(catalogue, catalogue.findings)
    ran = [
        (bound.id, run_case(bound, test, catalogue.plugins))
        for bound in catalogue.bound
        for test in bound.config.tests
        if only in test.name
    ]
    if not ran:
        fix = "write them below tests: in a pipeline file (docs/testing.md)"
        raise FatalError("no test matches", code="test.none", fix=fix)
    failed = sum(not verdict.passed for _, verdict in ran)
    summary = f"{count(len(ran), 'test')}, {failed} failed" if failed else f"{count(len(ran), 'test')} passed"
    error = FatalError(summary, code="test.failed", fix="fix the pipeline or the test") if failed else None
    return Outcome(
        summary,
        {"tests": [_facts(pipeline, verdict) for pipeline, verdict in ran]},
        FAILED if failed else OK,
        error,
        lambda console: _show_tests(console, ran),
    )


def _opened(paths: list[str]) -> Catalogue:
    from conduit_dagster.cli.verb_session import session_opener
    from conduit_dagster.spark.sql.query import open_with

    # only a query needs a session
    open_with(session_opener(current_project()))
    return current_catalogue(paths)


def _chosen(bound: list[BoundPipeline], pipeline: str | None) -> BoundPipeline:
    names = [one.id for one in bound]
    if pipeline is None and len(bound) > 1:
        raise usage_error(f"the file has {len(bound)} pipelines: {', '.join(names)}", "which_pipeline", "--pipeline ID")
    found = next((one for one in bound if pipeline in (None, one.id)), None)
    if found is None:
        raise usage_error(f"the file has no pipeline {pipeline}", "unknown_pipeline", f"it has: {', '.join(names)}")
    return found


def _show_tried(console: Console, found: list[Facts]) -> None:
    from conduit_dagster.readable import readable_line

    for one in found:
        console.print(f"{one['source']}: {readable_line(one['given'])}")
        for node in one["nodes"]:
            said = [f"nacked, {nack['code']}: {nack['message']}" for nack in node["nacked"]]
            said += ["filtered"] * node["filtered"]
            console.print(f"  {node['node']}: {'; '.join(said) or 'passed'}")
            for record in node["records"]:
                console.print(f"    {readable_line(record)}")
        for name, records in one["arrived"].items():
            console.print(f"  -> {name}: {len(records)}")
        console.print()


def _line(record: Any) -> str:
    return json.dumps(record, ensure_ascii=False)


# -- tests --------------------------------------------------------------------------------------------------------


def _facts(pipeline: str, verdict: CaseResult) -> Facts:
    flaws = [flaw._asdict() for flaw in verdict.flaws]
    return {"pipeline": pipeline, "name": verdict.name, "passed": verdict.passed, "flaws": flaws}


def _show_tests(console: Console, ran: list[tuple[str, CaseResult]]) -> None:
    for pipeline, verdict in ran:
        console.print(f"{'passed' if verdict.passed else 'FAILED'}  {pipeline}: {verdict.name}")
        for flaw in verdict.flaws:
            console.print(f"    {flaw.where}")
            console.print(f"      expected {_line(flaw.expected)}")
            console.print(f"      got      {_line(flaw.got)}")
