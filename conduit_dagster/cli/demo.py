"""``python -m conduit_dagster.cli.demo``: run a pipeline end to end in ./demo and print the result."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from conduit_dagster.cli.progress import finished, show_result
from conduit_dagster.cli.running import run_together
from conduit_dagster.cli.terminal import configure_logs, console, print_error
from conduit_dagster.cli.verb import INVALID, Outcome, failure
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.recovery.errors import ConduitError, FatalError, from_os_error

if TYPE_CHECKING:
    from rich.console import Console

LINES: Final = 1_000
_SETTINGS: Final = "# all defaults: SQLite and staging under .conduit/, Spark in this process\n"
_MARK: Final = ".made-by-demo"
_CUSTOMERS: Final = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Leslie")
_STATUSES: Final = ("paid", "paid", "paid", "paid", "open", "cancelled")


def make_project(folder: Path) -> None:
    """Write the project from scratch. An existing folder that the demo did not create is never deleted."""
    try:
        _clear(folder)
        for name in ("in", "pipelines"):
            (folder / name).mkdir(parents=True)
        (folder / _MARK).touch()
        (folder / "conduit.yaml").write_text(_SETTINGS)
        template = files("conduit_dagster.cli").joinpath("templates", "demo.yaml")
        (folder / "pipelines" / "orders.yaml").write_text(template.read_text())
        (folder / "in" / "orders.jsonl").write_text("".join(f"{line}\n" for line in _lines()))
    except OSError as error:
        raise from_os_error(error, "can't write the demo") from error


def _clear(folder: Path) -> None:
    if not folder.exists():
        return
    if not (folder / _MARK).exists():
        raise FatalError(
            f"{folder} already exists, and the demo did not make it",
            code="usage.demo_folder",
            fix="move it away, or run the demo in another folder",
        )
    shutil.rmtree(folder)


def _lines() -> Iterator[str]:
    """Yield orders; about one in a hundred is not JSON, lacks its customer, or has an amount that is not a number."""
    chance = random.Random(7)
    for number in range(1, LINES + 1):
        order: dict[str, object] = {
            "id": number,
            "customer": chance.choice(_CUSTOMERS),
            "amount": f"{chance.randint(100, 99_999) / 100:.2f}",
            "status": chance.choice(_STATUSES),
        }
        yield _spoiled(number, order)


def _spoiled(number: int, order: dict[str, object]) -> str:
    if number % 97 == 0:
        return json.dumps(order)[:-12]
    if number % 89 == 0:
        del order["customer"]
    elif number % 211 == 0:
        order["amount"] = "n/a"
    return json.dumps(order)


FOLDER = Path("demo")
_SHOWN = 3


def main() -> int:
    """Write the project, run it, print the contents of its files, and return the exit code."""
    try:
        outcome = _demonstrate(FOLDER, console())
    except ConduitError as error:
        outcome = failure(error)
    if outcome.error is not None:
        print_error(console(sys.stderr), outcome.error.fields())
    return outcome.exit


def _demonstrate(folder: Path, to: Console) -> Outcome:
    make_project(folder)
    # ignore variables that this shell has set for another project
    project = Project.find(folder, env={})
    configure_logs(project.settings.log)
    catalogue = open_catalogue(project)
    broken = [finding for finding in catalogue.findings if finding.is_error]
    if broken:
        raise FatalError(broken[0].render(), code="validation.failed")
    to.print(f"{folder}/in/orders.jsonl      {_count(folder / 'in/orders.jsonl'):,} lines, some of them bad")
    to.print(f"{folder}/pipelines/orders.yaml  the pipeline\n\nrunning it; Spark takes a few seconds to start\n")
    ended = run_together(project, catalogue.bound, once=True, server=False)
    for result in ended.results:
        show_result(to, result)
    outcome = finished(ended.results, [], ended.forced_exit)
    return outcome if outcome.error else _compared(folder, to, outcome)


def _compared(folder: Path, to: Console, outcome: Outcome) -> Outcome:
    """Print the contents of the files; return ``outcome``, or an error if line counts differ from the run's report."""
    records = outcome.result["pipelines"][0]
    reported = {one["id"]: one["delivered"] for one in records["destinations"]}
    reported["dead-letters"] = records["records"]["dead_lettered"]
    found = {name: _count(folder / f"out/{name}.jsonl") for name in reported}
    _show_files(folder, to, found)
    if found == reported:
        return outcome
    error = FatalError(f"the files hold {found}, the run reported {reported}", code="demo.counts_differ")
    return Outcome(error.message, None, INVALID, error)


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
    """Return the number of dead letters and the first error message by node and code."""
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
