"""``python -m conduit_dagster.cli.demo``: a pipeline from end to end in ./demo, and what came of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conduit_dagster.cli.demo_project import make_project
from conduit_dagster.cli.logs import configure_logs
from conduit_dagster.cli.outcome import INVALID, Outcome, error_fields, failure
from conduit_dagster.cli.results import finished, show_result
from conduit_dagster.cli.running import run_together
from conduit_dagster.cli.terminal import console, print_error
from conduit_dagster.config.project import Project
from conduit_dagster.engine.catalogue import open_catalogue
from conduit_dagster.recovery.errors import ConduitError, FatalError

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = Path("demo")
_SHOWN = 3


def main() -> int:
    """Writes the project, runs it, prints what its files hold; the exit code."""
    try:
        outcome = _demonstrate(FOLDER, console())
    except ConduitError as error:
        outcome = failure(error)
    if outcome.error is not None:
        print_error(console(sys.stderr), outcome.error)
    return outcome.exit


def _demonstrate(folder: Path, to: Console) -> Outcome:
    make_project(folder)
    # whatever this shell has set for another project stays out
    project = Project.find(folder, env={})
    configure_logs(project.settings.log)
    catalogue = open_catalogue(project)
    broken = [finding for finding in catalogue.findings if finding.is_error]
    if broken:
        raise FatalError(broken[0].render(), code="validation.failed")
    to.print(f"{folder}/in/orders.jsonl      {_count(folder / 'in/orders.jsonl'):,} lines, some of them bad")
    to.print(f"{folder}/pipelines/orders.yaml  the pipeline\n\nrunning it; Spark takes a few seconds to start\n")
    ended = run_together(project, catalogue.bound, once=True)
    for result in ended.results:
        show_result(to, result, ended.stopped)
    outcome = finished(ended.results, [], ended.forced_exit, ended.stopped)
    return outcome if outcome.error else _compared(folder, to, outcome)


def _compared(folder: Path, to: Console, outcome: Outcome) -> Outcome:
    """What the files hold; an error where they don't hold what the run reported."""
    records = outcome.result["pipelines"][0]
    reported = {one["id"]: one["delivered"] for one in records["destinations"]}
    reported["dead-letters"] = records["records"]["dead_lettered"]
    found = {name: _count(folder / f"out/{name}.jsonl") for name in reported}
    _show_files(folder, to, found)
    if found == reported:
        return outcome
    error = FatalError(f"the files hold {found}, the run reported {reported}", code="demo.counts_differ")
    return Outcome(error.message, None, INVALID, error_fields(error))


def _show_files(folder: Path, to: Console, found: dict[str, int]) -> None:
    to.print("\nread back from the files:")
    for name, lines in found.items():
        to.print(f"  {folder}/out/{name + '.jsonl':<19} {lines:,} lines")
    to.print(f"\nthe first of {folder}/out/paid.jsonl:")
    for line in (folder / "out/paid.jsonl").read_text().splitlines()[:_SHOWN]:
        to.print(f"  {line}")
    to.print("\nwhy records are dead letters, and one of each kind:")
    for reason, (number, example) in _reasons(folder / "out/dead-letters.jsonl").items():
        to.print(f"  {number:>3}  {reason}: {example}")
    to.print("\nnext:")
    for command in ("pipelines describe orders", "run --once", "lint", "doctor"):
        to.print(f"  .venv/bin/conduit-dagster -C {folder} {command}")


def _reasons(path: Path) -> dict[str, tuple[int, str]]:
    """Node and code to how many dead letters have them, and what the first one says."""
    rows: list[dict[str, Any]] = [json.loads(line)["metadata"] for line in path.read_text().splitlines()]
    named = [(f"{row['conduit.dlq.nack.node.id']} {row['conduit.dlq.nack.code']}", row) for row in rows]
    numbers = Counter(name for name, _ in named)
    first = {name: row["conduit.dlq.nack.error"] for name, row in reversed(named)}
    return {name: (number, first[name]) for name, number in numbers.most_common()}


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


if __name__ == "__main__":
    sys.exit(main())
