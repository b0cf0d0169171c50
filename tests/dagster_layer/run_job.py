"""Run a job of the project in the working directory and print what its acks show, as one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dagster as dg

from conduit_dagster.config.project import Project
from conduit_dagster.definitions import define
from conduit_dagster.resources.spark_resource import SparkResource
from conduit_dagster.spark.session import is_connect

_seen: list[bool] = []


class Watched(SparkResource):
    """Record the kind of session it got."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        super().setup_for_execution(context)
        _seen.append(is_connect(self.spark_session))


def main(job: str) -> int:
    project = Project.find(Path.cwd())
    definitions = define(project)
    resources = {**(definitions.resources or {}), "conduit_spark": Watched(root=str(project.root))}
    definition = dg.Definitions(
        assets=definitions.assets, jobs=definitions.jobs, resources=resources, executor=dg.in_process_executor
    ).resolve_job_def(job)
    with dg.DagsterInstance.ephemeral() as instance:
        result = definition.execute_in_process(instance=instance)
        event = instance.get_latest_materialization_event(dg.AssetKey([job, "acks"]))
        assert event is not None
        assert event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
        numbers = {name: value.value for name, value in metadata.items() if isinstance(value.value, int)}
    print(json.dumps({"connect": all(_seen) and bool(_seen), **numbers}))
    return 0 if result.success else 1


sys.exit(main(sys.argv[1]))
