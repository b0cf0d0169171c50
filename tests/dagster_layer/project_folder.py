"""A project in a temporary folder, its jobs run in this process, and what they left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from conduit_dagster.config.project import Project
from conduit_dagster.definitions import define
from conduit_dagster.state.database import open_database
from conduit_dagster.state.overview import pipeline_rows

NUMBERS = """
version: "2.2"
pipelines:
  - id: {id}
    trigger: {trigger}
    connectors:
      - id: in
        type: source
        plugin: builtin:file
        settings: {{path: ./in.jsonl}}
      - {{id: out, type: destination, plugin: builtin:file, settings: {{path: ./out.jsonl}}}}
    processors:
      - {{id: decode, plugin: json.decode, settings: {{field: .Payload.After}}}}
      - {{id: bad, plugin: error, condition: "after.n % 10 == 3", settings: {{message: "a three"}}}}
      - {{id: even, plugin: filter, condition: "after.n % 2 == 0"}}
    dead-letter-queue: {queue}
"""
SETTINGS = (
    "CONDUIT_PIPELINES", "CONDUIT_HOME", "CONDUIT_STATE_URL", "CONDUIT_MATERIALIZE_EVERY", "CONDUIT_SPARK_URL",
)  # fmt: skip
"""Of the caller's environment: no test may see them."""
TAKES_ALL = "{plugin: builtin:file, window-size: 0, settings: {path: ./dead.jsonl}}"


class Folder:
    """A project and what its runs left."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        self.root, self.instance = root, instance
        (root / "pipelines").mkdir()

    def write(self, name: str, text: str) -> Path:
        path = self.root / "pipelines" / name
        path.write_text(text)
        return path

    @staticmethod
    def passed(numbers: range) -> list[int]:
        """The numbers that the pipeline ``numbers`` delivers."""
        return [n for n in numbers if n % 2 and n % 10 != 3]

    def numbers(self, count: int = 100, trigger: str = "available-now", queue: str = TAKES_ALL) -> None:
        """The pipeline ``numbers``: of 100 records 10 are dead letters, 50 filtered, 40 delivered."""
        self.write("numbers.yaml", NUMBERS.format(id="numbers", trigger=trigger, queue=queue))
        self.append(range(count))

    def append(self, numbers: range) -> None:
        with (self.root / "in.jsonl").open("a") as file:
            file.writelines(f'{{"n": {n}}}\n' for n in numbers)

    @property
    def delivered(self) -> list[int]:
        """The numbers in the destination."""
        lines = (self.root / "out.jsonl").read_text().splitlines()
        return [json.loads(line)["payload"]["after"]["n"] for line in lines]

    @property
    def definitions(self) -> dg.Definitions:
        return define(Project.find(self.root, {}))

    def run(self, job: str = "numbers", **config: Any) -> dg.ExecuteInProcessResult:
        ops = {"ops": {f"{job}__run": {"config": config}}}
        definition = self.definitions.resolve_job_def(job)
        return definition.execute_in_process(ops, self.instance, raise_on_error=False)

    def newest(self, *key: str) -> dict[str, Any]:
        """The metadata of an asset's newest materialisation."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey(list(key)))
        assert event is not None
        assert event.asset_materialization is not None
        return {name: value.value for name, value in event.asset_materialization.metadata.items()}

    @property
    def store(self) -> sa.Engine:
        return open_database(Project.find(self.root, {}).state_url)

    def ended(self, pipeline: str) -> bool:
        """Return whether it has run and stands still."""
        return pipeline in (rows := pipeline_rows(self.store)) and rows[pipeline]["status"] == "stopped"

    def status(self, pipeline: str) -> tuple[str, str]:
        row = pipeline_rows(self.store)[pipeline]
        return row["status"], row["reason"]
