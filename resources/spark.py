"""The Spark session of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pyspark import PySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import Field, PrivateAttr

from conduit_dagster.config.project import Project
from conduit_dagster.spark.session import SparkSettings, close_session, default_url, is_connect, open_session


class SparkResource(PySparkResource):
    """dagster-pyspark's session, opened as the project's ``spark`` settings say: the shared server where they say
    nothing, else local, a master, Connect.

    It exists before the op begins: a SparkContext that is made inside one takes SIGINT away from Dagster. The
    settings are read at the start of a run and are no config, so that no secret in them shows in the UI. A
    classic session lives as long as its process; a Connect session is given back to its server after the run.
    """

    root: str = Field(description="The project's root folder; its conduit.yaml says where Spark is.")
    url: str | None = Field(
        default=None, description="Overrides spark.url: shared, a master or a Spark Connect server (sc://…)."
    )
    spark_config: dict[str, Any] = Field(default={}, description="Overrides spark.conf, key by key.")
    _spark_session: Any = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Opens the session, or takes the one that this process has."""
        name = f"conduit {context.run.job_name}" if context.run else "conduit"
        self._spark_session = open_session(self.settings(alone=_is_alone(context)), name)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Gives a Connect session back."""
        if self._spark_session is not None and is_connect(self._spark_session):
            close_session(self._spark_session)

    def settings(self, alone: bool = False) -> SparkSettings:
        """The project's settings with this resource's own over them. ``alone``: no other run is at work."""
        project = Project.find(Path(self.root))
        own = project.settings.spark
        extra = {key: str(value) for key, value in flatten_dict(self.spark_config)}
        url = self.url or own.named_url or default_url(several=not alone)
        return SparkSettings(url, {**own.conf, **extra}, own.parallelism, home=project.home, idle=own.idle_timeout)


def _is_alone(context: dg.InitResourceContext) -> bool:
    """An instance that ends with its run has no other: ``execute_in_process``, commands without ``DAGSTER_HOME``."""
    return context.instance is None or context.instance.is_ephemeral
