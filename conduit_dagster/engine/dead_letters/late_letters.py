"""Dead letters of records that a destination refuses at publishing, and the originals of these records."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.dead_letters.archive import keep, kept
from conduit_dagster.engine.dead_letters.letter_layout import NackOrigin, dead_letter
from conduit_dagster.engine.dead_letters.replay_source import letter_at
from conduit_dagster.engine.dead_letters.split_letters import Originals, processed
from conduit_dagster.engine.delivery_errors import (
    archive_lost,
    differs,
    queue_refuses,
    refused_letter,
    shown_cause,
    to_error,
    ways_out,
)
from conduit_dagster.engine.delivery_progress import LETTERS, Shipment, as_delivery
from conduit_dagster.engine.offset_updates import generations, offset_of, origin_of, span_of
from conduit_dagster.engine.reading import read_blocks
from conduit_dagster.engine.registering import changed_source
from conduit_dagster.engine.resolve import base_of
from conduit_dagster.engine.restage import Restaged, content, is_staged
from conduit_dagster.engine.sending import send_directly
from conduit_dagster.engine.stager import from_rows
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.sdk import (
    Block,
    Delivery,
    Part,
    ReadOptions,
    StagedDestination,
    StagedRecord,
    Target,
    Writer,
    WriterTask,
)
from conduit_dagster.secret_values import hide
from conduit_dagster.state.steps import Decision, DeliveryChild, LateLetter, Plan, StagedDelivery


class LateLetters:
    """Writer of dead letters found at publishing.

    Letters of records refused together form one delivery, named by the first record's place in its step. A record is in
    at most one such delivery.
    """

    def __init__(self, context: StepContext, originals: StepOriginals) -> None:
        self._context, self._originals = context, originals
        self._pipeline = context.pipeline
        self._queue, self._node = self._pipeline.dead_letters.destination, self._pipeline.dead_letters.node

    # -- stage --------------------------------------------------------------------------------------------------

    def stage(self, shipment: Shipment, refused: Sequence[tuple[StagedRecord, Nack]]) -> StagedDelivery:
        """Stage the dead letters of these records, durably and in order; at least one record.

        Raises the error of the queue or of one of its processors if it refuses a letter.
        """
        context, plan, decision = self._context, shipment.plan, shipment.decision
        first, _ = refused[0]
        skip = LETTERS + base_of(plan, decision.sources, first.source) + first.ordinal
        name = context.hashes.child(plan, DEAD_LETTERS, DeliveryChild(skip, len(refused)))
        # the queue's own processors run here, as they do in a task
        self._pipeline.begin_step(plan.clock_ns, plan.hashes, generations(plan))
        # next to the step's own dead letters: the queue may have to rename the folder into place
        beside = next(d.staging for d in decision.deliveries if d.consumer == DEAD_LETTERS)
        staging = storage.join(beside.rsplit("/", 1)[0], f"letter-{secrets.token_hex(8)}")
        writer = self._queue.writer(WriterTask(staging, 0, secrets.token_hex(8), name, self._pipeline.idempotency))
        for _, some in groupby(refused, lambda one: one[0].source):
            self._write(writer, shipment, list(some), name)
        part: Part | None = writer.finish()
        if part is not None:
            storage.sync(staging)
            storage.sync(staging.rsplit("/", 1)[0])
        target = blamed(self._node, self._queue.target, context.state.targets.get(DEAD_LETTERS))
        return StagedDelivery(DEAD_LETTERS, "dlq", name, staging, [part] if part else [], target, skip)

    def _write(
        self, writer: Writer, shipment: Shipment, refused: Sequence[tuple[StagedRecord, Nack]], name: str
    ) -> None:
        """Write the letters of records of one source. Raises ``FatalError`` (``dead_letters.refused``)."""
        first = refused[0][0]
        self._pipeline.idempotency.source = first.source
        letters = [self._letter(shipment, record, nack, name) for record, nack in refused]
        rows, origins = processed(self._pipeline, letters, [one.ordinal - first.ordinal for one, _ in refused])
        writer.place(first.source, first.ordinal, origins)
        if said := writer.write(rows):
            place, nack = said[0]
            ordinal = first.ordinal + origins[place]
            record = next(one for one, _ in refused if one.ordinal == ordinal)
            message = self._originals.redact(shipment, record, nack.message)
            writer.abort()
            raise queue_refuses(Nack(nack.code, message), self._node)

    def _letter(self, shipment: Shipment, record: StagedRecord, nack: Nack, name: str) -> Record:
        context, plan = self._context, shipment.plan
        offset = offset_of(plan, record.source, record.ordinal)
        origin = NackOrigin(context.name, origin_of(plan, record.source), offset, name)
        failed = self._pipeline.redaction.record(record.record) if self._queue.prints else record.record
        return dead_letter(origin, context.node(shipment.consumer), nack, failed, plan.clock_ns)

    def stage_again(self, plan: Plan, decision: Decision, letter: LateLetter) -> StagedDelivery:
        """Stage recorded letters again from the archive if their staging is lost; needs neither source nor code.

        Raises ``FatalError``: ``delivery.rebuild_differs`` if the queue's own settings or processors have changed, and
        ``dead_letters.damaged``.
        """
        part, line = letter.archive
        nacks = letter.nacks
        try:
            found = list(self._context.archive.letters(part, range(line, line + len(nacks))))
        except FatalError as error:
            raise archive_lost(plan, error, ways_out(self._context.name, plan, decision, [DEAD_LETTERS])) from error
        records = [StagedRecord(one.source, one.ordinal, kept(one.failed)) for one in found]
        refused_by = next(staged for staged in decision.deliveries if staged.consumer == letter.consumer)
        refused = [(record, Nack(*nack)) for record, nack in zip(records, nacks, strict=True)]
        made = self.stage(Shipment(plan, decision, refused_by, is_recovered=True), refused)
        if [content(part) for part in made.parts] != [content(part) for part in letter.delivery.parts]:
            raise differs(plan, letter.delivery, ways_out(self._context.name, plan, decision, [DEAD_LETTERS]))
        return msgspec.structs.replace(letter.delivery, staging=made.staging, parts=made.parts)

    # -- publish ------------------------------------------------------------------------------------------------

    def publish(self, staged: StagedDelivery, plan: Plan) -> None:
        """Publish the letters of one delivery. Idempotent under its hash."""
        queue, target = self._queue, staged.target
        if not staged.parts:
            pass  # filtered by the queue's own processors
        elif isinstance(queue, StagedDestination):
            target = self._publish(queue, as_delivery(staged, plan.step))
        else:
            self._send(staged, plan)
        self._context.delivered(plan, staged, staged.records, target, {})

    def _publish(self, queue: StagedDestination, letter: Delivery) -> Target:
        redaction = self._pipeline.redaction
        try:
            return queue.publish(letter)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is classified there
            raise to_error(error, self._node, redaction) from shown_cause(error, redaction)

    def _send(self, staged: StagedDelivery, plan: Plan) -> None:
        sent = send_directly(self._context, plan, staged, DeliveryChild(0, staged.records, staged.records == 1), {})
        if (refused := refused_letter(sent, self._node, self._pipeline.redaction)) is not None:
            raise refused

    # -- after a crash ------------------------------------------------------------------------------------------

    def finish(self, plan: Plan, decision: Decision, recorded: LateLetter) -> None:
        """Publish recorded letters, unless the queue already has them."""
        if self._settle(recorded.delivery, plan):
            return
        staged = recorded.delivery
        if not is_staged(staged):
            staged = self.stage_again(plan, decision, recorded)
        self.publish(self._retargeted(recorded, staged, plan), plan)

    def _settle(self, staged: StagedDelivery, plan: Plan) -> bool:
        queue, delivery = self._queue, as_delivery(staged, plan.step)
        if not blamed(self._node, queue.holds, delivery):
            return False
        target = blamed(self._node, queue.settled, delivery)
        self._context.delivered(plan, staged, staged.records, target, {})
        return True

    def _retargeted(self, letter: LateLetter, staged: StagedDelivery, plan: Plan) -> StagedDelivery:
        """Return the delivery with a new target if its own is lost and the settings allow it; stored before any write.

        ``staged``: the letter's delivery, where its files are now.
        """
        target = blamed(self._node, self._queue.retarget, as_delivery(staged, plan.step))
        if target is None:
            return staged
        delivery = msgspec.structs.replace(letter.delivery, target=target)
        self._context.store.deliveries.retarget_letter(plan.step, msgspec.structs.replace(letter, delivery=delivery))
        return msgspec.structs.replace(staged, target=target)


class StepOriginals:
    """Reader of a step's splits, a second time, for the few records that a destination refuses."""

    def __init__(self, context: StepContext, restaged: Restaged) -> None:
        self._context, self._pipeline, self._restaged = context, context.pipeline, restaged
        self._open: dict[str, tuple[int, int, Originals]] = {}
        """By source: the step, the last requested ordinal, and the reader, positioned right after it."""
        self._last: tuple[tuple[int, str, int], bytes] = (-1, "", -1), b""

    def of(self, shipment: Shipment, record: StagedRecord) -> bytes:
        """Return the record in the archive's encoding; a second call for the same record reads nothing.

        Empty if the source or the code has changed since the step was prepared, or if a dead letter has no original: a
        prepared step does not depend on it (DELIVERY.md, When the pipeline changes).
        """
        asked = shipment.plan.step, record.source, record.ordinal
        if self._last[0] != asked:
            find = self._of_letter if shipment.plan.replay else self._of_source
            self._last = asked, find(shipment, record)
        return self._last[1]

    def redact(self, shipment: Shipment, record: StagedRecord, text: str) -> str:
        """Return a text without the redacted values of a record, in its present and its original form."""
        redaction = self._pipeline.redaction
        if not redaction:
            return hide(text)
        original = self.of(shipment, record)
        if not original:
            # a staged row does not show which fields its redacted values are in
            return "its text is left out, because it may contain redacted values"
        return redaction.text(text, [record.record, kept(original)])

    def _of_letter(self, shipment: Shipment, record: StagedRecord) -> bytes:
        letter = letter_at(shipment.decision, record.source, record.ordinal)
        try:
            return next(self._context.archive.records(letter.part, [letter.line], original=True))[1]
        except ConduitError:
            return b""

    def _of_source(self, shipment: Shipment, record: StagedRecord) -> bytes:
        plan, decision = shipment.plan, shipment.decision
        step, source, ordinal = plan.step, record.source, record.ordinal
        if changed_source(self._pipeline, plan, self._context.state) or not self._restaged.gives_same(shipment):
            return b""
        # the clock of the step's tasks: a source derives the same values from the time
        self._pipeline.begin_step(plan.clock_ns)
        known, last, reader = self._open.get(source, (-1, -1, None))
        if reader is None or known != step or ordinal <= last:
            reader = Originals(partial(self._blocks, plan, decision, source), 0)
        self._open[source] = (step, ordinal, reader)
        try:
            found = reader.of([ordinal])[0]
        except (ConduitError, OSError, StopIteration):
            del self._open[source]
            return b""
        # a record at another position is not the original of the staged one
        return keep(found) if str(found.position) == str(record.record.position) else b""

    def _blocks(self, plan: Plan, decision: Decision, source: str) -> Iterator[Block]:
        node, span = self._pipeline.source_node(source), span_of(plan, source)
        blamed(node.node, node.source.verify, span.start, span.end)
        tasks = from_rows(decision.splits)
        for split in (one.split for task in tasks for one in task if one.source == source):
            yield from read_blocks(
                node.node, node.source, self._pipeline.clock, node.source.relocate(split), ReadOptions()
            )
