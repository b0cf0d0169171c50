"""Job description that a step's tasks receive besides the program."""

from __future__ import annotations

import msgspec

from conduit_dagster.engine.log_request import LogRequest
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.sdk import Split
from conduit_dagster.state.steps import Memory


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
