"""The Spark session of a run, and the project with its state store, as Dagster resources."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import dagster as dg
import sqlalchemy as sa
from dagster_pyspark import PySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import Field, PrivateAttr

from conduit_dagster.config.project import Project
from conduit_dagster.secret_values import masked
from conduit_dagster.spark.session import SparkSettings, close_session, default_url, is_connect, open_session
from conduit_dagster.state.claim import project_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StateResource(dg.ConfigurableResource[None]):
    """State that must outlive a run. Its URL may contain a password: it is read from the project and is not config."""

    root: str = Field(description="The project's root folder; its conduit.yaml says where the state store is.")
    _database: sa.Engine | None = PrivateAttr(default=None)

    @property
    def project(self) -> Project:
        """The project as its settings file now defines it."""
        return Project.find(Path(self.root))

    @property
    def database(self) -> sa.Engine:
        """The state store, opened on first use."""
        if self._database is None:
            self._database = project_store(self.project)
        return self._database

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the store's connections."""
        if self._database is not None:
            self._database.dispose()


class SparkResource(PySparkResource):
    """dagster-pyspark's session, opened with the project's ``spark`` settings.

    By default the shared server, otherwise local, a master or Connect. It exists before the op begins: a SparkContext
    created inside an op takes SIGINT away from Dagster. The settings are read at the start of a run and are not config,
    so that no secret in them shows in the UI. A classic session lives as long as its process; a Connect session is
    returned to its server after the run.
    """

    root: str = Field(description="The project's root folder; its conduit.yaml says where Spark is.")
    url: str | None = Field(
        default=None, description="Overrides spark.url: shared, a master or a Spark Connect server (sc://…)."
    )
    spark_config: dict[str, Any] = Field(default={}, description="Overrides spark.conf, key by key.")
    _spark_session: Any = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Open the session, or reuse that of this process; log both before and after."""
        name = f"conduit {context.run.job_name}" if context.run else "conduit"
        settings = self.settings(alone=_is_alone(context))
        self._spark_session = _opened(settings, name, context.log, "; the step waits for it")

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Return a Connect session to its server."""
        if self._spark_session is not None and is_connect(self._spark_session):
            close_session(self._spark_session)

    def settings(self, alone: bool = False) -> SparkSettings:
        """Return the project's settings, overridden by this resource's own. ``alone``: no other run is active."""
        project = Project.find(Path(self.root))
        own = project.settings.spark
        extra = {key: str(value) for key, value in flatten_dict(self.spark_config)}
        url = self.url or own.named_url or default_url(lasting=not alone)
        return SparkSettings(url, {**own.conf, **extra}, own.parallelism, home=project.home, idle=own.idle_timeout)


class SparkSessionResource(Protocol):
    """A resource that has a Spark session: a ``SparkResource``, dagster-pyspark's own, or a user's."""

    @property
    def spark_session(self) -> Any:
        """The session."""
        ...


Spark = dg.ResourceParam[SparkSessionResource]


@contextmanager
def session_when_needed(context: dg.OpExecutionContext, root: str) -> Generator[Callable[[], SparkSession]]:
    """Yield a function that opens the project's session on its first call, for ops that seldom need Spark.

    A Connect session is returned to its server at the end.
    """
    sessions: list[SparkSession] = []

    def opened() -> SparkSession:
        if not sessions:
            settings = SparkResource(root=root).settings(alone=context.instance.is_ephemeral)
            sessions.append(_opened(settings, f"conduit {context.run.job_name}", context.log))
        return sessions[0]

    try:
        yield opened
    finally:
        for session in sessions:
            if is_connect(session):
                close_session(session)


def _opened(settings: SparkSettings, name: str, log: logging.Logger | None, waits: str = "") -> SparkSession:
    """Open the session. The first one takes up to a minute, during which Dagster shows nothing else."""
    to = log or dg.get_dagster_logger()
    to.info(f"opening a Spark session: {_place(settings)}{waits}")
    begun = time.monotonic()
    session = open_session(settings, name)
    to.info(f"the Spark session is open after {time.monotonic() - begun:.1f} s")
    return session


def _place(settings: SparkSettings) -> str:
    if settings.shared:
        return "the project's shared server, which is started if it does not run"
    # the options of a Connect server's URL may contain a token
    url = masked(settings.url.partition(";")[0])
    return f"server {url}" if settings.connect else f"master {url}"


def _is_alone(context: dg.InitResourceContext) -> bool:
    """Return whether the instance ends with its run: ``execute_in_process``, commands without ``DAGSTER_HOME``."""
    return context.instance is None or context.instance.is_ephemeral
