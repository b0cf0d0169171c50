"""Spark task of a step: reads its splits, runs the processors block by block, and stages every consumer's share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import msgspec

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline, compile_encoded
from conduit_dagster.engine.dead_letters.archive import ArchiveFile
from conduit_dagster.engine.dead_letters.split_letters import Originals, SplitContext, SplitLetters
from conduit_dagster.engine.log_writer import LogWriter
from conduit_dagster.engine.origins import TracedWriter, keeps_origins
from conduit_dagster.engine.plugin_results import require_methods
from conduit_dagster.engine.reading import SourceReadError, read_blocks, read_or_fail
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.spark_tasks import quiet_collector
from conduit_dagster.engine.split_run import SplitRun
from conduit_dagster.engine.stage_job import Ledger, LogRequest, SourceFailure, SplitOf, StageJob, TaskError, task_error
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import Record
from conduit_dagster.recovery.classify import ENDINGS, blamed
from conduit_dagster.sdk import Block, Destination, Keys, ReadOptions, Split, Writer, WriterTask
from conduit_dagster.state.steps import ProcessorState

_QUERY_RECORDS, _QUERY_BYTES = 12_000, 262_144
"""Maximum block size if a processor queries Spark for each block."""


@quiet_collector()
def stage_task(program: bytes, job: bytes, number: int) -> bytes:
    """Run one task of a :class:`StageJob`; return its encoded ledger."""
    return msgspec.msgpack.encode(run_task(program, msgspec.msgpack.decode(job, type=StageJob), number))


def run_task(program: bytes, job: StageJob, number: int) -> Ledger:
    """Run one task. Errors of any kind are returned in the ledger; nothing of a failed task counts."""
    task = None
    try:
        pipeline = compile_encoded(program)
        pipeline.begin_step(job.clock_ns, job.hashes, job.generations)
        task = _Task(pipeline, job, number)
        return task.run()
    except _StepCutError as cut:
        return Ledger(number, failed=cut.failure)
    except ENDINGS:
        raise
    except BaseException as error:  # noqa: BLE001  # Spark would keep only an exception's text; the ledger keeps its class
        found = task_error(error, "a task failed")
        return Ledger(number, error=task.masked(found) if task else found)


class _StepCutError(Exception):
    """Raised if the step must be cut before a source's failure: nothing of this execution counts."""

    def __init__(self, failure: SourceFailure) -> None:
        super().__init__(failure.error.message)
        self.failure = failure


class _Task:
    def __init__(self, pipeline: CompiledPipeline, job: StageJob, number: int) -> None:
        self._pipeline, self._job, self._number = pipeline, job, number
        self._token = secrets.token_hex(8)
        self._writers = {name: self._writer(name, destination) for name, destination in pipeline.consumers.items()}
        self._ledger = Ledger(number)
        self._log_writers: list[LogWriter] = []
        folder, step = job.archive
        self._archive = ArchiveFile(folder, step, number) if folder else None
        self._last: tuple[SplitOf, Block] | None = None

    def _writer(self, consumer: str, destination: Destination) -> Writer:
        name, idempotency = self._job.hashes.get(consumer, ""), self._pipeline.idempotency
        task = WriterTask(self._job.staging[consumer], self._number, self._token, name, idempotency)
        node = self._node(consumer)
        made = blamed(node, destination.writer, task)
        writer = require_methods(node, "writer()", made, Writer, ("write", "finish", "abort"))
        if consumer == DEAD_LETTERS or not keeps_origins(destination):
            return writer
        return TracedWriter(writer, task, as_records=consumer in self._job.as_records)

    def run(self) -> Ledger:
        try:
            self._recall_states()
            for split in self._job.tasks[self._number]:
                self._run_split(split)
            self._keep_states()
            for consumer, writer in self._writers.items():
                if part := blamed(self._node(consumer), writer.finish):
                    self._ledger.parts[consumer] = part
                if isinstance(writer, TracedWriter):
                    self._ledger.origins.update({consumer: writer.origins} if writer.origins else {})
                    self._ledger.records.update({consumer: writer.records} if writer.records else {})
            self._ledger.log_results.extend(writer.finish() for writer in self._log_writers)
            self._ledger.letters = self._archive.finish() if self._archive else None
        except BaseException:
            for writer in (*self._writers.values(), *self._log_writers, *([self._archive] if self._archive else [])):
                writer.abort()
            raise
        return self._ledger

    def _recall_states(self) -> None:
        for node, one in self._pipeline.stateful.items():
            one.recall(node, self._job.memory.get(node, ProcessorState()), self._job.state_folder)

    def _keep_states(self) -> None:
        folder, step = self._job.archive
        # for a prepared step the new state is already decided
        for node, one in self._pipeline.stateful.items() if folder else ():
            self._ledger.memory[node] = one.keep(self._job.state_folder, step)

    def _node(self, name: str) -> str:
        return node_id(self._pipeline.program.pipeline, name)

    def _run_split(self, split: SplitOf) -> None:
        source_node = self._pipeline.source_node(split.source)
        begin, blocks = self._opened(source_node, split.split)
        ordinal, writers = split.split.ordinal, self._writers
        originals = Originals(lambda: self._read(source_node, split.split, ReadOptions()), ordinal)
        context = SplitContext(self._pipeline, self._job, source_node, ordinal, begin)
        letters = SplitLetters(context, writers[DEAD_LETTERS], self._archive, originals)
        run = SplitRun(context, writers, self._ledger, letters)
        try:
            for block in blocks:
                self._last = (split, block)
                run.block(block)
                self._last = None
        except SourceReadError as failed:
            assert failed.__cause__ is not None
            error = self.masked(task_error(failed.__cause__, "a source failed"))
            failure = SourceFailure(split.source, run.ordinal, self._read_upto(split, run), error)
            raise _StepCutError(failure) from failed

    def _read_upto(self, split: SplitOf, run: SplitRun) -> Any:
        """Return the source's own position after the last record read; in a step that logs, boundaries are offsets."""
        if split.source not in self._job.log_requests:
            return run.boundary()
        logged = self._log_writers[-1].boundary
        return split.split.start if logged is None else logged

    def masked(self, error: TaskError) -> TaskError:
        """Return the task's error without the redacted values of its last block, in present and original form."""
        redaction = self._pipeline.redaction
        if not redaction:
            return error
        if self._last is None:
            # between blocks, or at the end: the record that it belongs to is unknown
            unnamed = "a task failed; its text is left out, because it may contain redacted values"
            return error.without_text(unnamed) if error.is_unforeseen else error
        records = [*self._last[1].records, *self._read_again(*self._last)]
        return error.masked(lambda text: redaction.text(text, records))

    def _read_again(self, split: SplitOf, block: Block) -> Iterator[Record]:
        """Yield the block's records as the source returned them, as far as they can still be read."""
        try:
            if block.again is not None:
                yield from block.again(range(len(block.records)))
                return
            options = self._sized(ReadOptions())
            for again in self._read(self._pipeline.source_node(split.source), split.split, options):
                if again.boundary(0) == block.boundary(0):
                    yield from again.records
                    return
        except Exception:  # noqa: BLE001  # what is told is the error before
            return

    def _opened(self, source_node: SourceNode, split: Split) -> tuple[Any, Iterator[Block]]:
        """Return the boundary before the split's first record, and its blocks."""
        to = self._job.log_requests.get(source_node.id)
        if to is not None:
            return to.first + split.ordinal, self._log_writer(source_node, to, split.ordinal).blocks(split)
        whole = bool(self._job.as_records)
        keys = Keys.ALL if whole else self._pipeline.reads_keys
        # what is masked for an error's text must be found in the block's own records
        payloads = not (whole or self._pipeline.redaction)
        options = ReadOptions(keys, payloads=payloads, rows=not whole and self._pipeline.takes_rows(source_node))
        return split.start, read_or_fail(self._read(source_node, split, self._sized(options)))

    def _sized(self, options: ReadOptions) -> ReadOptions:
        """Return options with larger blocks if processors query Spark: the cost of a query is almost constant."""
        if not self._pipeline.queries:
            return options
        return options._replace(block_records=_QUERY_RECORDS, block_bytes=_QUERY_BYTES)

    def _read(self, source_node: SourceNode, split: Split, options: ReadOptions) -> Iterator[Block]:
        return read_blocks(source_node.node, source_node.source, self._pipeline.clock, split, options)

    def _log_writer(self, source_node: SourceNode, to: LogRequest, ordinal: int) -> LogWriter:
        """Return the log writer of a source: consecutive splits share one file."""
        if not self._log_writers or self._log_writers[-1].source != source_node.id:
            self._log_writers.append(LogWriter(self._pipeline, source_node, to, ordinal))
        return self._log_writers[-1]
