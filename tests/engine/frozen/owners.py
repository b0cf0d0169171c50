"""Owners of pipelines for tests that freeze or replace them: how long a contender waits depends on each run."""

from __future__ import annotations

import sqlite3

from lab.support import Lab

from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import run_pipeline

SILENT = 3600.0
"""Lease seconds of an owner that is to be frozen: it shows no heartbeat while a test looks, and so is silent for any
contender, and no heartbeat of its own can be in a transaction at the moment when it is stopped."""


class Owners(Lab):
    """A project whose pipelines run under leases of any length."""

    def take(self, pipeline: str = "p", lease: float = 0.3) -> RunResult:
        """Run the pipeline once its owner was silent for ``lease`` seconds."""
        assert self._spark is not None
        catalogue = self.catalogue()
        bound = catalogue.get(pipeline)
        assert bound is not None, "\n".join(finding.render() for finding in catalogue.findings)
        options = RunOptions(catalogue.project.staging_url, drain=True, lease_seconds=lease)
        with self.store() as database:
            return run_pipeline(bound, self._spark, database, options, StopFlag())

    def ledger(self, name: str = "out") -> list[int]:
        """The numbers of the rows in a ledger, in the order in which they arrived."""
        file = self.root / f"{name}.ledger"
        if not file.exists():
            return []
        connection = sqlite3.connect(file, timeout=30)
        try:
            return [row[0] for row in connection.execute("SELECT i FROM rows ORDER BY rowid")]
        finally:
            connection.close()
