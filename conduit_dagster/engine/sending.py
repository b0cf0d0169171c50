"""Publishing to a direct destination: a Spark job of one task, whose acks become durable while it runs."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.acks import Acked, AckFile, Acks, newest
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, close, compile_encoded
from conduit_dagster.engine.delivery_progress import as_delivery
from conduit_dagster.engine.offset_updates import generations
from conduit_dagster.engine.plugin_results import invalid_result, nack_of, require_methods
from conduit_dagster.engine.stage_job import TaskError, task_error
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import Record
from conduit_dagster.recovery.classify import classified, survivable
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import (
    NACKED_TOGETHER,
    DirectDestination,
    Receipt,
    Sender,
    SenderTask,
    StagedRecord,
    staged_records,
)
from conduit_dagster.secret_values import hide
from conduit_dagster.state.steps import DeliveryChild, Plan, StagedDelivery

if TYPE_CHECKING:
    from conduit_dagster.engine.step_context import StepContext


class SendJob(msgspec.Struct, frozen=True):
    """One attempt to send a range of a delivery's records."""

    consumer: str
    step: int
    clock_ns: int
    delivery: StagedDelivery
    first: int
    """Place of the first record to send."""
    count: int
    skipped: dict[str, int]
    """Namespace to the place of its last handled record."""
    single: bool
    """Whether to send each record only after the previous one's ack."""
    interval: float
    """Seconds between two flushes of the acks."""
    token: str
    hashes: dict[str, str] = {}
    generations: dict[str, int] = {}
    once: bool = False
    """Whether nothing is sent twice (at-most-once): then only the job's first execution sends."""


class Sent(msgspec.Struct):
    """Result of an attempt."""

    acked: Acked
    nacks: list[tuple[int, str, str]] = []
    """Place, code and message."""
    error: TaskError | None = None
    """Error that ended it early."""
    bulk: bool = False
    """Whether the error names no record and is no outage."""
    received: int = 0
    """Number of acked records, also behind one that has no ack."""


def send_task(program: bytes, job: bytes, _: int) -> bytes:
    """Send in one task, which preserves the order of the records; return the encoded :class:`Sent`."""
    return msgspec.msgpack.encode(send(compile_encoded(program), msgspec.msgpack.decode(job, type=SendJob)))


def send(pipeline: CompiledPipeline, job: SendJob) -> Sent:
    """Send until the end, an error or too many nacks. Errors of any kind are returned in the result."""
    pipeline.begin_step(job.clock_ns, job.hashes, job.generations)
    destination = pipeline.consumers[job.consumer]
    assert isinstance(destination, DirectDestination)
    acks = Acks(job.first)
    try:
        if job.once and not is_first(job.delivery.staging, job.token):
            return _sent_before(job)
        made = destination.sender(SenderTask(job.delivery.hash, job.consumer, job.step, pipeline.idempotency))
        node = node_id(pipeline.program.pipeline, job.consumer)
        sender = require_methods(node, "sender()", made, Sender, ("send", "finish", "close"))
    except BaseException as error:
        if (known := survivable(error)) is None:
            raise
        return Sent(acks.acked(), [], task_error(known, f"{job.consumer} could not begin"))
    with AckFile(acks, job.delivery.staging, job.token, job.interval):
        try:
            sending = _Sending(pipeline, job, sender, acks)
            error, bulk = sending.run()
        finally:
            # whatever that raises, the acks it gave before count
            close("sender", job.consumer, sender.close)
    nacks = [(place, nack.code, hide(nack.message)) for place, nack in sorted(acks.nacks.items())]
    return Sent(_recordable(acks), nacks, error, bulk, acks.received)


def is_first(staging: str, token: str) -> bool:
    """Return whether no other execution of a job has begun: Spark repeats a task whose executor was lost."""
    return storage.put_new(storage.join(staging, f"begun-{token}"), secrets.token_bytes(16))


def _sent_before(job: SendJob) -> Sent:
    """Return the result of an execution that may not send: an earlier one has sent something, and acked this much."""
    acked = next(iter(newest(job.delivery.staging, job.token)), Acked(job.first))
    lost = TransientError("the task that sent them was lost, and nothing is sent twice", code="spark.job_failed")
    return Sent(acked, [], task_error(lost, "sending"), received=acked.handled - job.first)


def _recordable(acks: Acks) -> Acked:
    """Return the handled part, with the nacks that the driver records: those before the first unhandled record.

    A nacked record after it is sent again; its namespace must not count as handled up to it, or it would be lost.
    """
    acked = acks.acked()
    if any(place >= acked.handled for place in acks.nacks):
        acked.namespaces = acks.safe().namespaces
    return acked


_NO_ACK = (
    "run again: what has no ack is sent again; conduit-dagster offsets list PIPELINE shows the record that comes next,"
    " and offsets mark PIPELINE CONNECTOR OFFSET gives it up"
)


class _Sending:
    def __init__(self, pipeline: CompiledPipeline, job: SendJob, sender: Sender, acks: Acks) -> None:
        self._sender, self._acks, self._job, self._idempotency = sender, acks, job, pipeline.idempotency
        destination = pipeline.consumers[job.consumer]
        assert isinstance(destination, DirectDestination)
        self._size = 1 if job.single else destination.batch
        self._node = node_id(pipeline.program.pipeline, job.consumer)
        self._redaction, self._last = pipeline.redaction, list[Record]()
        self._collected = time.monotonic()
        self._outcome: tuple[TaskError | None, bool] = (None, False)

    def run(self) -> tuple[TaskError | None, bool]:
        """Return the error that ended the sending, and whether it was a bulk error."""
        for first, batch in self._batches():
            if not self._hand_over(first, batch) or len(self._acks.nacks) >= NACKED_TOGETHER:
                break
            if self._job.single and not self._settle():
                break
            if time.monotonic() - self._collected >= self._job.interval and not self._settle():
                break
        self._settle()
        # also of a record sent singly, which would be sent again at once, without end
        if (unhandled := self._acks.unhandled) and self._outcome[0] is None:
            subject = "1 record was" if unhandled == 1 else f"{unhandled} records were"
            missing = TransientError(f"{subject} not acknowledged", code="delivery.unacked", fix=_NO_ACK)
            self._outcome = (task_error(missing, "sending"), False)
        return self._outcome

    def _batches(self) -> Iterator[tuple[int, list[StagedRecord]]]:
        """Yield runs of consecutive records of one source that are still to be sent, and the place of the first."""
        job, batch, first = self._job, list[StagedRecord](), 0
        piece = replace(as_delivery(job.delivery, job.step), skip=job.first, take=job.count)
        for place, staged in enumerate(islice(staged_records(piece), job.count), job.first):
            if place <= job.skipped.get(staged.record.collection, -1):
                # an earlier run acked it, although an earlier record was not (CASES C13)
                self._acks.sent(place, staged.record.collection, staged.source, staged.ordinal)
                self._acks.ack(place)
                if batch:
                    yield first, batch
                    batch = []
                continue
            if batch and batch[0].source != staged.source:
                yield first, batch
                batch = []
            first = first if batch else place
            batch.append(staged)
            if len(batch) >= self._size:
                yield first, batch
                batch = []
        if batch:
            yield first, batch

    def _hand_over(self, first: int, batch: list[StagedRecord]) -> bool:
        """Send a batch; return False on failure. Records known to be acked stay acked."""
        for place, staged in enumerate(batch, first):
            self._acks.sent(place, staged.record.collection, staged.source, staged.ordinal)
        self._last = [staged.record for staged in batch]
        self._idempotency.source = batch[0].source
        try:
            receipts = self._sender.send(self._last, first)
            # a generator may also raise while it is consumed
            self._take([Receipt(place) for place in range(first, first + len(batch))] if receipts is None else receipts)
        except BaseException as error:  # noqa: BLE001  # an ending is raised again there
            self._failed(error)
            return False
        return True

    def _settle(self) -> bool:
        """Collect outstanding acks. Return False if the sender failed, or if a record sent singly has no ack."""
        self._collected = time.monotonic()
        try:
            self._take(self._sender.finish())
        except BaseException as error:  # noqa: BLE001  # an ending is raised again there
            self._failed(error)
            return False
        return not (self._job.single and self._acks.unhandled)

    def _take(self, receipts: Any) -> None:
        if not isinstance(receipts, Iterable):
            raise self._invalid(receipts)
        for receipt in cast("Iterable[Any]", receipts):
            if not isinstance(receipt, tuple) or len(cast("tuple[Any, ...]", receipt)) != len(Receipt._fields):
                raise self._invalid(receipt)
            place, nack, upto = cast(Receipt, receipt)
            if nack is not None:
                self._acks.nack(place, nack_of(self._node, "a Receipt of the sender", nack))
            elif upto:
                self._acks.ack_up_to(place)
            else:
                self._acks.ack(place)

    def _invalid(self, given: Any) -> FatalError:
        return invalid_result(self._node, "the sender", given, "a list of Receipt")

    def _failed(self, raised: BaseException) -> None:
        """Keep the first error, of whatever kind: the driver decides."""
        if (error := survivable(raised)) is None:
            raise raised
        known = isinstance(error, OSError) or classified(error) is not None
        if self._outcome[0] is None:
            self._outcome = (self._told(error, known), not known)

    def _told(self, error: Exception, known: bool) -> TaskError:
        told = task_error(error, f"{self._job.consumer} failed")
        if self._redaction and not known and not self._job.single:
            # the outstanding record of the error, and its original values, are unknown
            return told.without_text(self._redaction.unnamed(error))
        return told.masked(lambda text: self._redaction.text(text, self._last))


def send_directly(
    context: StepContext,
    plan: Plan,
    delivery: StagedDelivery,
    piece: DeliveryChild,
    skipped: dict[str, int],
    flushed: Callable[[Acked], bool] = lambda _: True,
    once: bool = False,
) -> Sent:
    """Send a piece of a staged delivery, by a Spark job of one task; with ``once`` never any of it twice.

    ``skipped``: by namespace, the place of the last record that an earlier job's destination acked. ``flushed`` is
    called with the acks as they become durable. It returns False if it could not store them, and is then called again
    with the same acks.
    """
    token, interval = secrets.token_hex(8), context.settings.flush_interval
    job = SendJob(
        delivery.consumer, plan.step, plan.clock_ns, delivery, piece.skip, piece.take, skipped, piece.single, interval,
        token, plan.hashes, generations(plan), once,
    )  # fmt: skip
    task, ended = partial(send_task, context.program, msgspec.msgpack.encode(job)), threading.Event()
    follow = partial(_follow, delivery.staging, job, flushed, ended)
    thread = threading.Thread(target=follow, name=f"acks-of-{delivery.consumer}", daemon=True)
    thread.start()
    try:
        (row,) = context.jobs.each(1, task)
    finally:
        ended.set()
        thread.join()
    return msgspec.msgpack.decode(row, type=Sent)


def _follow(staging: str, job: SendJob, flushed: Callable[[Acked], bool], ended: threading.Event) -> None:
    known: list[Acked] = []
    while not ended.wait(job.interval):
        try:
            found = newest(staging, job.token)
        except OSError:
            continue  # an unavailable file system is reported when the job ends
        if found and found != known and flushed(found[0]):
            known = found


learn(SendJob, Sent)
