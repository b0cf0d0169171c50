"""A pipeline as data: sent to the tasks and compiled there once per worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from conduit_dagster.config.delivery import FanIn, Strategy
from conduit_dagster.msgspec_warmup import learn

if TYPE_CHECKING:
    from conduit_dagster.config.pipeline import Pipeline
    from conduit_dagster.sdk import Source

LogKind = Literal["records", "positions"]
"""What is kept so that a step can be read again."""


class ProcessorSpec(msgspec.Struct, frozen=True):
    """One processor of a pipeline."""

    node: str
    """Full id: ``pipeline:processor`` or ``pipeline:connector:processor``."""
    plugin: str
    settings: dict[str, str]
    condition: str = ""
    namespace: str = ""


class ConnectorSpec(msgspec.Struct, frozen=True):
    """One connector of a pipeline."""

    id: str
    plugin: str
    settings: dict[str, str]
    namespace: str = ""
    processors: list[ProcessorSpec] = []
    condition: str = ""
    from_log: bool = False
    """Whether a destination that is added later receives the log from its beginning."""


class Replay(msgspec.Struct, frozen=True):
    """Replay of dead letters."""

    id: int
    """Unique in the pipeline: the generation of its records in delivery hashes."""
    start: Literal["source", "node"] = "source"
    """Whether to send the original record through the whole pipeline, or the failed one from the node that nacked it.
    """
    edits: list[tuple[str, str]] = []
    """Pairs of field and expression, applied first."""


class Program(msgspec.Struct, frozen=True):
    """A whole pipeline. Contains the source text of the project's plugins, so that workers need no path to them."""

    pipeline: str
    root: str
    sources: list[ConnectorSpec]
    processors: list[ProcessorSpec]
    destinations: list[ConnectorSpec]
    dead_letters: ConnectorSpec
    window_size: int
    window_threshold: int = 0
    strategy: Strategy = "at-least-once"
    log: LogKind = "positions"
    fan_in: FanIn = "merge"
    plugins: dict[str, str] = {}
    """Module name to source text."""
    installed: bool = False
    """Whether it uses plugins of installed packages."""
    packages: dict[str, str] = {}
    """Version of each installed package whose plugins it uses."""
    replay: Replay | None = None
    redact: list[str] = []
    """Fields that must not appear in any log, list, asset or error text."""
    secrets: list[str] = []
    """Values that must not appear in any text from a task."""


def choose_log(config: Pipeline, sources: Iterable[Source | type[Source] | None]) -> tuple[LogKind, str]:
    """Return the kind of log that makes steps repeatable, and the reason for the choice.

    ``sources``: None for an unknown one. Source: DESIGN.md, How records move.
    """
    if config.delivery.log != "auto":
        return config.delivery.log, "the file says so"
    if config.delivery.drift:
        return "records", "drift lets each destination read the log at its own pace"
    if config.fan_in != "merge":
        return "records", f"fan-in {config.fan_in} reads what was logged"
    if late := [connector.id for connector in config.destinations if connector.start_from == "log"]:
        return "records", f"the destination {late[0]} starts from the log"
    if config.delivery.log_retention is not None:
        return "records", "log-retention keeps records in the log"
    if once := [source.name for source in sources if source is not None and not source.replayable]:
        return "records", f"the source {once[0]} can't be read twice"
    return "positions", "every source can be read again, and the fan-in is merge"


learn(Program)
