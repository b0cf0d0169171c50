"""Spark task of an append, which reads a part of a source and writes it to the log."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from conduit_dagster.commit_log.entries import Batch, Nacks, encode_block
from conduit_dagster.commit_log.segment_files import PartFile
from conduit_dagster.commit_log.segment_layout import Written
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, compile_encoded
from conduit_dagster.engine.log_writer import encode_loggable
from conduit_dagster.engine.plugin_results import require_new
from conduit_dagster.engine.reading import SourceReadError, read_blocks, read_or_fail
from conduit_dagster.engine.redaction import Redaction
from conduit_dagster.engine.spark_tasks import quiet_collector
from conduit_dagster.engine.stage_job import TaskError, task_error
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Block, ReadOptions, Split

_OPTIONS = ReadOptions(block_bytes=262_144)
"""Larger blocks than a stage's, because columns are built one block at a time."""


class AppendTask(msgspec.Struct, frozen=True):
    """Splits of one source whose records are contiguous in the log."""

    source: str
    splits: list[Split]
    first: int
    """Offset of the first entry."""
    folder: str
    """URL of the segment."""
    after: Any = None
    """Position of the last logged record of a plugin's source that can't be read twice; None if nothing is to check."""


class AppendJob(msgspec.Struct, frozen=True):
    """One execution of one append."""

    clock_ns: int
    tasks: list[AppendTask]
    generation: int = 0
    """Generation of the join whose members' processors run here."""
    once: bool = False
    """Whether one of the sources can't be read twice, so that a second attempt of a task is refused."""


class Appended(msgspec.Struct):
    """Report of one task."""

    task: int
    written: Written | None = None
    boundary: Any = None
    """The boundary after the last record that was read; None if none was."""
    error: TaskError | None = None
    failed: TaskError | None = None
    """Error that stopped the source in the middle of its range. Records returned before it are in the file, and count.
    """
    host: str = msgspec.field(default_factory=socket.gethostname)
    """The machine on which it ran."""


@quiet_collector()
def append_task(program: bytes, job: bytes, number: int) -> bytes:
    """Run one task of an :class:`AppendJob`; return its encoded :class:`Appended`."""
    return msgspec.msgpack.encode(append(program, msgspec.msgpack.decode(job, type=AppendJob), number))


def append(program: bytes, job: AppendJob, number: int) -> Appended:
    """Run one task. Errors of any kind are returned in the report, and none of that task's output counts."""
    redaction = Redaction([])
    try:
        if job.once:
            _require_first_attempt()
        pipeline = compile_encoded(program)
        redaction = pipeline.redaction
        source = job.tasks[number].source
        # no step has these records yet, so there is no delivery hash
        pipeline.begin_step(job.clock_ns, {}, {source: job.generation})
        pipeline.idempotency.source = source
        return _Appending(pipeline, job, number).run()
    except Exception as error:  # noqa: BLE001  # Spark would keep only an exception's text
        return Appended(number, error=_told(error, "an append failed", redaction))


def _told(error: BaseException, doing: str, redaction: Redaction) -> TaskError:
    """Return the error, without its text if anything is redacted and the text may hold it."""
    told = task_error(error, doing)
    return told.without_text(redaction.unnamed(error.__cause__ or error)) if redaction and told.is_unforeseen else told


def _require_first_attempt() -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise TransientError(
            "a source that can't be read twice was being read when its task failed",
            code="log.second_attempt",
            fix="start the pipeline again: the source gives what was not acked once more",
        )


class _Appending:
    def __init__(self, pipeline: CompiledPipeline, job: AppendJob, number: int) -> None:
        self._task = job.tasks[number]
        self._source_node = next(source_node for source_node in pipeline.sources if source_node.id == self._task.source)
        # a join pairs the output of the sources' processors; otherwise the processors run when a step reads the log
        self._nodes = self._source_node.nodes if pipeline.program.fan_in == "join" else ()
        self._pipeline = pipeline
        self._report = Appended(number)
        self._offset = self._task.first
        # random per attempt, so that a second attempt never collides with the file of the first
        self._file = PartFile(self._task.folder, self._task.first, secrets.token_hex(8))
        self._nacks: dict[int, tuple[str, Nack, Record]] = {}

    def run(self) -> Appended:
        source_node = self._source_node
        try:
            try:
                for split in self._task.splits:
                    for block in read_or_fail(
                        read_blocks(source_node.node, source_node.source, self._pipeline.clock, split, _OPTIONS)
                    ):
                        self._block(block)
            except SourceReadError as failed:
                assert failed.__cause__ is not None
                self._report.failed = _told(failed.__cause__, "a source failed", self._pipeline.redaction)
            self._report.written = self._file.finish()
        except BaseException:
            self._file.abort()
            raise
        return self._report

    def _block(self, block: Block) -> None:
        if self._task.after is not None:
            require_new(self._source_node.node, block, self._task.after)
        self._report.boundary = block.boundary(len(block.records) - 1)
        records, nacks = self._processed(block)
        if records:
            self._file.write(self._encoded(records, nacks))
            self._offset += len(records)

    def _encoded(self, records: list[Record], nacks: Nacks) -> Batch:
        node, now = self._source_node, self._pipeline.clock.now_ns // 1000
        encode = partial(encode_block, node.id, self._offset, modes=None, timestamp_us=now)
        return encode_loggable(encode, node.node, records, nacks)[0]

    def _processed(self, block: Block) -> tuple[list[Record], Nacks]:
        """Return the records of a block to log: those that passed the processors, and the nacked ones in place."""
        if not self._nodes:
            return block.records, block.nacks
        self._nacks = {place: (node, nack, block.records[place]) for place, (node, nack) in block.nacks.items()}
        origins: Sequence[int] = [place for place in range(len(block.records)) if place not in block.nacks]
        kept = [block.records[place] for place in origins], origins
        for node in self._nodes:
            kept = node.run(*kept, self)
        rows = [(origin, record, None) for record, origin in zip(*kept, strict=True)]
        bad = [(origin, record, (node, nack)) for origin, (node, nack, record) in self._nacks.items()]
        every = sorted([*rows, *bad], key=lambda row: row[0])
        return [record for _, record, _ in every], {i: nack for i, (_, _, nack) in enumerate(every) if nack}

    def filtered(self, node: str, origin: int) -> None:
        """Ignore a filtered record: it is not logged."""

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        """Log the record as nacked; the nack of the first node counts."""
        self._nacks.setdefault(origin, (node, nack, record))


learn(AppendJob, Appended)
