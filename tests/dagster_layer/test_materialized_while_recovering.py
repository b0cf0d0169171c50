"""A materialisation of a pipeline's assets while its restart is pending, which fails as well."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder

from conduit_dagster.state.recovery_state import recovery_rows

pytestmark = pytest.mark.usefixtures("spark")
AWAY = """
version: "2.2"
pipelines:
  - id: away
    recovery: {min-delay: 30m, max-delay: 2h}
    connectors:
      - {id: in, type: source, plugin: chaos, settings: {records: 5, fail-on: read, code: 503}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out.jsonl}}
"""


def test_another_restart_follows(folder: Folder) -> None:
    """The pipeline was degraded, and stayed away once the outage was over."""
    folder.write("away.yaml", AWAY)
    other = dg.define_asset_job("other", dg.AssetSelection.groups("away"), executor_def=dg.in_process_executor)
    job = dg.Definitions.merge(folder.definitions, dg.Definitions(jobs=[other])).resolve_job_def("other")
    assert not folder.run("away").success
    assert folder.status("away")[0] == "recovering"
    assert not job.execute_in_process(instance=folder.instance, raise_on_error=False).success
    recovery = recovery_rows(folder.store)["away"]
    assert (folder.status("away")[0], recovery.past.attempt) == ("recovering", 2)
    assert recovery.restart_at_ns
