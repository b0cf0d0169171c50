"""The pipeline file, version 2.2: Conduit's fields and defaults, and our own additions."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from conduit_dagster.config.check import Section, refuse
from conduit_dagster.config.delivery import Delivery, FanIn, Recovery, Trigger
from conduit_dagster.config.scalars import (
    ConnectorId,
    ConnectorName,
    Description,
    FieldReference,
    PipelineId,
    PipelineName,
    Regex,
    Settings,
)
from conduit_dagster.config.tests import PipelineTest

LATEST_VERSION = "2.2"
OLDER_VERSIONS = ("2.0", "2.1")

DEFAULT_DEAD_LETTER_PLUGIN = "builtin:log"
_LOG_PLUGINS = ("log", "builtin:log")

NotNegative = Annotated[int, Field(ge=0)]
Workers = Annotated[int, Field(ge=0), AfterValidator(lambda workers: workers or 1)]


def _queue_settings(plugin: str) -> dict[str, str]:
    # Conduit gives these to every plugin; others than the log would refuse them as unknown
    if plugin.partition("@")[0] in _LOG_PLUGINS:
        return {"level": "warn", "message": "record delivery failed"}
    return {}


class Processor(Section):
    """One processing of records, at its place in the list."""

    id: str
    """The processor's name, unique among those of its pipeline or connector."""

    plugin: str
    """What it does: `field.set`, `builtin:json.decode@v1`, or a plugin of your own."""

    condition: str | None = None
    """Only records for which this holds are processed, others pass. A Python expression or Go template."""

    settings: Settings = {}
    """The plugin's settings. Values are texts."""

    workers: Workers = 1
    """Conduit's number of parallel workers; 0 means 1. Order is kept whatever the number."""

    namespace: Regex | None = None
    """Only records whose collection matches are processed (RE2, unanchored)."""


class Connector(Section):
    """A source or a destination."""

    id: ConnectorId
    """The connector's name, unique in the pipeline. With the pipeline's id and a colon at most 256 bytes."""

    type: Literal["source", "destination"]
    """Whether the pipeline reads from it or writes to it."""

    plugin: str
    """What it connects to: `file`, `builtin:postgres`, `builtin:file@v1`, or a plugin of your own."""

    name: ConnectorName = Field(default_factory=lambda data: str(data.get("id", "")))
    """A name for people. The id, where none is given."""

    settings: Settings = {}
    """The plugin's settings. Values are texts; `${VAR}` is replaced from the environment."""

    namespace: Regex | None = None
    """Only records whose collection matches pass through this connector (RE2, unanchored)."""

    condition: str | None = None
    """Only records for which this holds pass through this connector. A Python expression or Go template (ours)."""

    processors: list[Processor] = []
    """Processors for the records of this connector alone."""

    start_from: Literal["boundary", "log"] = "boundary"
    """Where a destination starts that is added later: where the pipeline stands, or what the log of records holds."""

    @model_validator(mode="after")
    def _only_destinations_are_added_to_a_log(self) -> Self:
        if self.type == "source" and self.start_from == "log":
            message = "only a destination starts from the log"
            raise refuse(
                message, expected="boundary", fix="remove it: a source starts at its beginning", at="start-from"
            )
        return self


class DeadLetterQueue(Section):
    """Where records go that were nacked, and how many nacks a pipeline bears."""

    plugin: str = DEFAULT_DEAD_LETTER_PLUGIN
    """The destination that takes the dead letters."""

    settings: Settings = Field(default_factory=lambda data: _queue_settings(str(data.get("plugin", ""))))
    """The plugin's settings. Without any, a log gets `level: warn`, `message: record delivery failed`."""

    window_size: NotNegative = 1
    """The last so many records are looked at; 0 takes every nack without limit."""

    window_nack_threshold: NotNegative = 0
    """Nacks borne within the window; one more stops the pipeline. Must be smaller than the window."""

    processors: list[Processor] = []
    """Processors for the dead letters themselves, before the queue gets them (ours)."""

    open_limit: NotNegative | None = None
    """Open dead letters borne: with more of them the asset check `open_dead_letters` fails (ours)."""

    @model_validator(mode="after")
    def _window_larger_than_threshold(self) -> Self:
        if 0 < self.window_size <= self.window_nack_threshold:
            message = "the window must be larger than the nack threshold"
            expected = f"window-size above {self.window_nack_threshold}, or 0 to take every nack"
            fix = f"set window-size: {self.window_nack_threshold + 1}"
            raise refuse(message, expected=expected, fix=fix, at="window-size")
        return self


class Pipeline(Section):
    """What moves from where to where."""

    id: PipelineId
    """The pipeline's name in every command and table: letters, digits and `- _ : .`, at most 128 bytes."""

    status: Literal["running", "stopped"] = "running"
    """Whether the pipeline starts by itself."""

    name: PipelineName = Field(default_factory=lambda data: str(data.get("id", "")))
    """A name for people, unique among all pipelines, at most 128 bytes. The id, where none is given."""

    description: Description = ""
    """What the pipeline is for, at most 8192 bytes."""

    delivery: Delivery = Delivery()
    """The delivery guarantee and the size of batches (ours, not Conduit's)."""

    recovery: Recovery = Recovery()
    """How the pipeline comes back after an error; the rest comes from the project's settings (ours)."""

    trigger: Trigger = Trigger()
    """When the pipeline runs (ours)."""

    fan_in: FanIn = "merge"
    """How several sources become one stream of records (ours)."""

    connectors: list[Connector] = []
    """Sources and destinations, at least one of each. Their order is of no importance."""

    processors: list[Processor] = []
    """Processors for the records of all sources, in their order."""

    dead_letter_queue: DeadLetterQueue = DeadLetterQueue()
    """What happens to nacked records. By default the first nack stops the pipeline."""

    redact: list[FieldReference] = []
    """Fields whose values no log, list, asset or error text shows: `.Payload.After.ssn`. What is stored keeps them."""

    tests: list[PipelineTest] = []
    """Cases that `conduit-dagster test` runs (ours)."""

    @property
    def sources(self) -> list[Connector]:
        """The connectors it reads from, as listed."""
        return [connector for connector in self.connectors if connector.type == "source"]

    @property
    def destinations(self) -> list[Connector]:
        """The connectors it writes to, as listed."""
        return [connector for connector in self.connectors if connector.type == "destination"]


class PipelineFile(Section):
    """One YAML document."""

    version: str = LATEST_VERSION
    """The version of the format."""

    pipelines: list[Pipeline]
    """The pipelines."""
