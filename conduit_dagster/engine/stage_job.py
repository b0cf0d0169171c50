"""Job description that a step's tasks receive besides the program, and what a task that writes the log returns."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.commit_log.segment_layout import Written
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.sdk import Split
from conduit_dagster.state.steps import Memory


class LogRequest(msgspec.Struct, frozen=True):
    """Destination of one source's records in the log."""

    folder: str
    """URL of the segment."""
    first: int
    """Offset of the step's first record."""


class LogResult(msgspec.Struct, frozen=True):
    """Records of one source that a task has logged."""

    source: str
    ordinal: int
    """Index of its first record in the step's range."""
    written: Written | None
    """The written file; None if there was no record."""
    boundary: Any
    """The source's own position after the last of them."""


class SplitOf(msgspec.Struct, frozen=True):
    """A split and the source it belongs to."""

    source: str
    split: Split


class StageJob(msgspec.Struct, frozen=True):
    """One execution of one step: everything its tasks need besides the program."""

    clock_ns: int
    tasks: list[list[SplitOf]]
    staging: dict[str, str]
    """Consumer to the folder URL for this execution."""
    hashes: dict[str, str] = {}
    generations: dict[str, int] = {}
    as_records: list[str] = []
    """Consumers that keep origins, and whose share is staged as whole records too."""
    nacked: dict[str, list[int]] = {}
    """By source, offsets in the log of records that have made their nack (``Plan.nacked``)."""
    tees: dict[str, LogRequest] = {}
    """Sources that are read themselves, and logged on the way; by their id."""
    offsets: dict[str, int] = {}
    """The offset of each source's first record."""
    archive: tuple[str, int] = ("", 0)
    """The folder that keeps what is nacked, and the step's number; nothing is kept without a folder."""

    memory: dict[str, Memory] = {}
    """By node, what processors remember (``Plan.memory``)."""
    memories: str = ""
    """The folder of that."""

    def encode(self) -> bytes:
        """Encode the job for the tasks."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> StageJob:
        """Decode the result of :meth:`encode`."""
        return msgspec.msgpack.decode(data, type=StageJob)


learn(StageJob)
