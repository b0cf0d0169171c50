"""A pipeline as data: what travels to the tasks, and is compiled there once per worker."""

from __future__ import annotations

from typing import Literal

import msgspec

from conduit_dagster.msgspec_warmup import learn


class ProcessorSpec(msgspec.Struct, frozen=True):
    """One processor of a pipeline."""

    node: str
    """Its id with its parents': ``pipeline:processor`` or ``pipeline:connector:processor``."""
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
    """A destination that is sent what the log holds, when it is added later."""


class Replay(msgspec.Struct, frozen=True):
    """Dead letters that go through the pipeline again."""

    id: int
    """Unique in the pipeline: the generation of its records in delivery hashes."""
    start: Literal["source", "node"] = "source"
    """Whether the original record passes the whole pipeline, or the failed one goes on at the node that nacked it."""
    edits: list[tuple[str, str]] = []
    """Field and expression, applied first."""


class Program(msgspec.Struct, frozen=True):
    """A whole pipeline. Holds the source text of the project's plugins, so that a worker needs no path to them."""

    pipeline: str
    root: str
    sources: list[ConnectorSpec]
    processors: list[ProcessorSpec]
    destinations: list[ConnectorSpec]
    dead_letters: ConnectorSpec
    window_size: int
    window_threshold: int = 0
    strategy: Literal["exactly-once", "at-least-once", "at-most-once"] = "at-least-once"
    log: Literal["records", "positions"] = "positions"
    fan_in: Literal["merge", "join", "alternate"] = "merge"
    plugins: dict[str, str] = {}
    """Module name to source text."""
    installed: bool = False
    """Whether it uses plugins of installed packages."""
    replay: Replay | None = None
    redact: list[str] = []
    """Fields that no log, list, asset or error text may show."""
    secrets: list[str] = []
    """Values that no text from a task may hold."""

    def encode(self) -> bytes:
        """Encode the program for the tasks."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> Program:
        """Decode the result of :meth:`encode`."""
        return msgspec.msgpack.decode(data, type=Program)


learn(Program)
