"""A pipeline as data: sent to the tasks and compiled there once per worker."""

from __future__ import annotations

from typing import Literal

import msgspec

from conduit_dagster.config.delivery import FanIn, Strategy
from conduit_dagster.msgspec_warmup import learn

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
    replay: Replay | None = None
    redact: list[str] = []
    """Fields that must not appear in any log, list, asset or error text."""
    secrets: list[str] = []
    """Values that must not appear in any text from a task."""


learn(Program)
