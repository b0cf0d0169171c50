"""Pipeline file, version 2.2: Conduit's fields and defaults, our own additions, and the tests of its pipelines."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from conduit_dagster.config.delivery import DeliverySettings, FanIn, Recovery, Trigger
from conduit_dagster.config.findings import refuse
from conduit_dagster.config.model_findings import Section
from conduit_dagster.config.scalars import (
    ConnectorId,
    ConnectorName,
    Description,
    FieldReference,
    Owner,
    PipelineId,
    PipelineName,
    Regex,
    Settings,
)
from conduit_dagster.config.tree import typed
from conduit_dagster.record import Operation


def _data(value: Any) -> Any:
    found = typed(value)
    if found is None or isinstance(found, str | dict):
        return found
    raise refuse("a payload is a document or raw data", expected="a mapping, or a text", fix="put it into a field")


Part = Annotated[dict[str, Any] | str | None, BeforeValidator(_data)]


class RecordParts(Section):
    """Parts of a record. A mapping is a document, a string is raw data, null is no data."""

    empty: ClassVar[frozenset[str]] = frozenset({"key", "before", "after"})

    operation: Operation | None = None
    """Operation of the record. Defaults to `create` for an input record."""

    metadata: dict[str, str] = {}
    """Metadata entries. Of an output record only the listed entries are compared."""

    key: Part = None
    """The key."""

    before: Part = None
    """The payload before the change."""

    after: Part = None
    """The payload after the change."""


class ExpectedNack(Section):
    """A record that must be nacked. Fields that are not given are not compared."""

    node: str | None = None
    """Node that nacks it: `convert`, or `out:convert` for a processor of the connector `out`."""

    code: str | None = None
    """Error code of the nack."""

    message: str | None = None
    """Text that the message must contain."""


class Mock(Section):
    """Mock of a processor; without any key, records pass unchanged."""

    record: RecordParts | None = None
    """Parts that replace those of each record."""

    drop: bool = False
    """Whether it drops each record."""

    nack: str | None = None
    """Message with which it nacks each record (code `processor.error`)."""


class Expected(Section):
    """Expected result of the records."""

    destinations: dict[str, list[RecordParts]] = {}
    """Records sent to each destination, in order. Unlisted destinations are not compared; payloads are compared whole.
    """

    nacked: list[ExpectedNack] = []
    """All expected nacks, in order. A nack that is not listed fails the test."""

    filtered: dict[str, int] = {}
    """Number of records that each node drops. Only the listed nodes are compared."""


class PipelineTest(Section):
    """One test case: only its records are read, and nothing is written."""

    name: str
    """What the test proves."""

    source: str | None = None
    """Source of the records; required if there are several sources."""

    records: list[RecordParts]
    """Input records."""

    mocks: dict[str, Mock] = {}
    """Mocks of processors, by node: `enrich`, or `out:enrich` for one of the connector `out`."""

    expect: Expected = Expected()
    """Expected output."""


LATEST_VERSION = "2.2"
OLDER_VERSIONS = ("2.0", "2.1")

DEFAULT_DEAD_LETTER_PLUGIN = "builtin:log"
_LOG_PLUGINS = ("log", "builtin:log")

NotNegative = Annotated[int, Field(ge=0)]
Workers = Annotated[int, Field(ge=0), AfterValidator(lambda workers: workers or 1)]


def _queue_settings(plugin: str) -> dict[str, str]:
    # Conduit passes these to every plugin; plugins other than the log would refuse them as unknown
    if plugin.partition("@")[0] in _LOG_PLUGINS:
        return {"level": "warn", "message": "record delivery failed"}
    return {}


Condition = Annotated[str | None, AfterValidator(lambda text: text if text and text.strip() else None)]
"""As in Conduit, a blank condition counts as none."""


class ProcessorConfig(Section):
    """A processor of records, applied in list order."""

    id: str
    """The processor's name, unique among those of its pipeline or connector."""

    plugin: str
    """Processor to apply: `field.set`, `builtin:json.decode@v1`, or a plugin of your own."""

    condition: Condition = None
    """Only records that satisfy it are processed, others pass unchanged. A Python expression or Go template."""

    settings: Settings = {}
    """The plugin's settings. Values are strings."""

    workers: Workers = 1
    """Number of parallel workers in Conduit; 0 means 1. Order is kept whatever the number."""

    namespace: Regex | None = None
    """Only records whose collection matches are processed (RE2, unanchored)."""


class ConnectorConfig(Section):
    """A source or a destination."""

    id: ConnectorId
    """The connector's name, unique in the pipeline. With the pipeline's id and a colon at most 256 bytes."""

    type: Literal["source", "destination"]
    """Whether the pipeline reads from it or writes to it."""

    plugin: str
    """Connector to use: `file`, `builtin:postgres`, `builtin:file@v1`, or a plugin of your own."""

    name: ConnectorName = Field(default_factory=lambda data: str(data.get("id", "")))
    """Display name. Defaults to the id."""

    settings: Settings = {}
    """The plugin's settings. Values are strings; `${VAR}` is replaced from the environment, `${file:PATH}` by a file's
    text ([secrets](../secrets.md)).
    """

    namespace: Regex | None = None
    """Only records whose collection matches pass through this connector (RE2, unanchored)."""

    condition: Condition = None
    """Only records that satisfy it pass through this connector. A Python expression or Go template (ours)."""

    processors: list[ProcessorConfig] = []
    """Processors for the records of this connector only."""

    start_from: Literal["boundary", "log"] = "boundary"
    """Where a destination added later starts: at the pipeline's position, or with the records that the log still holds.
    """

    @model_validator(mode="after")
    def _only_destinations_are_added_to_a_log(self) -> Self:
        if self.type == "source" and self.start_from == "log":
            message = "only a destination starts from the log"
            raise refuse(
                message, expected="boundary", fix="remove it: a source starts at its beginning", at="start-from"
            )
        return self


class DeadLetterQueue(Section):
    """Destination of nacked records, and the number of nacks that a pipeline tolerates."""

    plugin: str = DEFAULT_DEAD_LETTER_PLUGIN
    """Destination of the dead letters."""

    settings: Settings = Field(default_factory=lambda data: _queue_settings(str(data.get("plugin", ""))))
    """The plugin's settings. A log without any gets `level: warn`, `message: record delivery failed`."""

    window_size: NotNegative = 1
    """Number of latest records in which nacks are counted; 0 accepts any number of nacks."""

    window_nack_threshold: NotNegative = 0
    """Nacks tolerated within the window; one more stops the pipeline. Must be smaller than the window."""

    processors: list[ProcessorConfig] = []
    """Processors for the dead letters themselves, applied before the queue (ours)."""

    open_limit: NotNegative | None = None
    """Open dead letters tolerated: with more of them the asset check `open_dead_letters` fails (ours)."""

    @model_validator(mode="after")
    def _window_larger_than_threshold(self) -> Self:
        if 0 < self.window_size <= self.window_nack_threshold:
            message = "the window must be larger than the nack threshold"
            expected = f"window-size above {self.window_nack_threshold}, or 0 to take every nack"
            fix = f"set window-size: {self.window_nack_threshold + 1}"
            raise refuse(message, expected=expected, fix=fix, at="window-size")
        return self


class Pipeline(Section):
    """A pipeline from sources to destinations."""

    id: PipelineId
    """The pipeline's name in every command and table: letters, digits and `- _ : .`, at most 128 bytes."""

    status: Literal["running", "stopped"] = "running"
    """Whether the pipeline is started automatically."""

    name: PipelineName = Field(default_factory=lambda data: str(data.get("id", "")))
    """Display name, unique among all pipelines, at most 128 bytes. Defaults to the id."""

    description: Description = ""
    """Purpose of the pipeline, at most 8192 bytes."""

    delivery: DeliverySettings = DeliverySettings()
    """The delivery guarantee and the size of batches (ours, not Conduit's)."""

    recovery: Recovery = Recovery()
    """Restarts after an error; values not given come from the project's settings (ours)."""

    trigger: Trigger = Trigger()
    """When the pipeline runs (ours)."""

    fan_in: FanIn = "merge"
    """How the records of several sources are combined into one stream (ours)."""

    connectors: list[ConnectorConfig] = []
    """Sources and destinations, at least one of each. Their order does not matter."""

    processors: list[ProcessorConfig] = []
    """Processors for the records of all sources, in order."""

    dead_letter_queue: DeadLetterQueue = DeadLetterQueue()
    """Handling of nacked records. By default the first nack stops the pipeline."""

    redact: list[FieldReference] = []
    """Fields whose values are not shown in any log, list, asset or error text: `.Payload.After.ssn`. Stored data keeps
    them.
    """

    owners: list[Owner] = []
    """Owners in Dagster: e-mail addresses and teams, `team:payments`. Default: `team:conduit` (ours)."""

    tests: list[PipelineTest] = []
    """Cases that `conduit-dagster test` runs (ours)."""

    @property
    def sources(self) -> list[ConnectorConfig]:
        """Source connectors, as listed."""
        return [connector for connector in self.connectors if connector.type == "source"]

    @property
    def destinations(self) -> list[ConnectorConfig]:
        """Destination connectors, as listed."""
        return [connector for connector in self.connectors if connector.type == "destination"]

    @property
    def all_processors(self) -> list[ProcessorConfig]:
        """Processors of the pipeline, of its connectors and of its dead-letter queue."""
        inner = [processor for connector in self.connectors for processor in connector.processors]
        return [*self.processors, *inner, *self.dead_letter_queue.processors]


class PipelineFile(Section):
    """One YAML document."""

    version: str = LATEST_VERSION
    """The version of the format."""

    pipelines: list[Pipeline]
    """The pipelines."""
