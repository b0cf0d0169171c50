"""The project's settings, ``conduit.yaml``: Conduit's keys where they mean something here, and our own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from conduit_dagster.config.delivery import Recovery
from conduit_dagster.config.scalars import PositiveDuration, Settings
from conduit_dagster.config.section import Section


class PipelinesSettings(Section):
    """The pipelines of the project."""

    path: str = "./pipelines"
    """The folder or file with the pipelines."""

    exit_on_degraded: bool = False
    """End `run` as soon as one pipeline is degraded."""

    error_recovery: Recovery = Recovery()
    """Recovery of all pipelines, where one says nothing else. `recovery` at the top level is the same."""


class LogSettings(Section):
    """What is printed."""

    level: Literal["trace", "debug", "info", "warn", "error"] = "info"
    """The least severe line to print."""

    format: Literal["cli", "json"] = "cli"
    """For people, or one JSON object per line."""


class SparkSettings(Section):
    """The Spark that moves the records."""

    url: str = "local[*]"
    """A master URL (`local[*]`, `spark://…`, `yarn`, `k8s://…`) or a Spark Connect server (`sc://…`)."""

    conf: Settings = {}
    """Spark's own configuration."""

    parallelism: Annotated[int, Field(ge=1)] | None = None
    """Tasks per step. Spark's default parallelism, where none is given."""


class StateSettings(Section):
    """What must outlive a process."""

    url: str | None = None
    """The state store, as an SQLAlchemy URL. SQLite in `$CONDUIT_HOME`, where none is given."""

    staging: str | None = None
    """Where staged records lie: a path or URL that the driver and all of Spark can open."""

    log: str | None = None
    """Where the commit log lies, likewise. Next to the state store, or in the staging folder where one is named."""

    lease: PositiveDuration = 10.0
    """How long a pipeline's owner may be silent before another process takes over."""


class ProjectSettings(Section):
    """All settings of a project."""

    pipelines: PipelinesSettings = PipelinesSettings()
    """The pipelines of the project."""

    log: LogSettings = LogSettings()
    """What is printed."""

    spark: SparkSettings = SparkSettings()
    """The Spark that moves the records."""

    state: StateSettings = StateSettings()
    """What must outlive a process."""

    @property
    def recovery(self) -> Recovery:
        """Recovery of all pipelines, where a pipeline says nothing else."""
        return self.pipelines.error_recovery


CONDUIT_ONLY = ("api", "connectors", "db", "dev", "grpc", "http", "preview", "processors", "schema-registry")
"""Conduit's other keys: read past with a word, so that its settings file can stay."""
