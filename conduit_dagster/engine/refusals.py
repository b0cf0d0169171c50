"""Records that a destination refuses at publishing: the nack window next in order, then a dead letter of their own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

from conduit_dagster.connectors.base import WriterTask
from conduit_dagster.connectors.staged import StagedRecord
from conduit_dagster.engine.blame import blamed
from conduit_dagster.engine.compiled import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.dead_letters.archive import Archive, ArchiveFile, Letter
from conduit_dagster.engine.dead_letters.kept import keep
from conduit_dagster.engine.dead_letters.layout import Origin, clean, dead_letter
from conduit_dagster.engine.dead_letters.missed import encode_missed
from conduit_dagster.engine.dead_letters.queue_nodes import processed
from conduit_dagster.engine.dead_letters.replay_source import letter_at
from conduit_dagster.engine.dead_letters.step_originals import StepOriginals
from conduit_dagster.engine.delivery_errors import queue_refuses
from conduit_dagster.engine.ledger import NackRow
from conduit_dagster.engine.moves import Offsets, offset_of, origin_of, span_of
from conduit_dagster.engine.nack_window import NackWindow
from conduit_dagster.engine.naming import LETTERS, Names
from conduit_dagster.engine.resolve import base_of, refusal
from conduit_dagster.engine.shipment import Shipment, after
from conduit_dagster.record import Nack
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state import storage
from conduit_dagster.state.letter_store import Missed
from conduit_dagster.state.letter_view import Key
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import DeadLetter, LetterPart, Plan, StagedDelivery
from conduit_dagster.state.steps import Letter as StagedLetter
from conduit_dagster.state.store import PipelineStore


class Refusals:
    """Makes nacks of what destinations refuse. Safe to call from several publishing threads."""

    def __init__(
        self,
        pipeline: CompiledPipeline,
        store: PipelineStore,
        state: PipelineState,
        window: NackWindow,
        archive: Archive,
        publish: Callable[[StagedDelivery, Plan], None],
    ) -> None:
        self._pipeline, self._store, self._state, self._window = pipeline, store, state, window
        self._archive, self._originals = archive, StepOriginals(pipeline)
        self._publish = publish
        self._names = Names(pipeline)
        self._lock = threading.Lock()
        self._rows: dict[str, list[NackRow]] = {}
        self._failed: Exception | None = None

    def take_rows(self) -> dict[str, list[NackRow]]:
        """The nacks since the last call, by the destination that refused."""
        rows, self._rows = self._rows, {}
        return rows

    def refuse(self, shipment: Shipment, place: int, record: StagedRecord, nack: Nack, moves: Offsets) -> bool:
        """Records the nack and publishes its dead letter; the shipment's progress moves past the record.

        False where the destination turns out to have the record. Raises the nack's error where the window does not
        accept it: nothing is recorded then and the step stays prepared.
        """
        with self._lock:  # the window takes nacks one after another
            if self._failed is not None:
                # the place of a letter in the queue follows from the one before it, which did not get there
                raise self._failed
            nack = self._redacted(shipment, record, nack)
            row = self._row(shipment, record, nack)
            offset = offset_of(shipment.plan, record.source, record.ordinal)
            # one source record makes at most one nack and one dead letter, however many of its copies fail
            replayed, source = shipment.plan.replay, origin_of(self._pipeline, record.source)
            known = not replayed and self._store.deliveries.is_nacked(shipment.plan.step, source, offset)
            known = known or offset in shipment.plan.nacked.get(record.source, ())
            window = self._state.window if known or replayed else self._accept(row)
            if not self._claim(shipment, place):
                return False
            shipment.progress = after(shipment.progress, 1, refused=1)
            if replayed:
                self._fail_again(shipment, record, row, moves)
                return True
            if known:
                missed = Missed(source, offset, shipment.consumer)
                self._store.deliveries.missed(shipment.plan.step, shipment.consumer, shipment.progress, missed, moves)
                return True
            self._record(shipment, place, record, row, nack, window, moves)
            return True

    def _redacted(self, shipment: Shipment, record: StagedRecord, nack: Nack) -> Nack:
        redaction = self._pipeline.redaction
        if not redaction:
            return nack
        # a reader of its own: the archive's is asked for the same record next
        original = StepOriginals(self._pipeline).of(shipment.plan, shipment.decision, record.source, record.ordinal)
        return redaction.nack(nack, record.record, *filter(None, [original]))

    def _accept(self, row: NackRow) -> str:
        verdict = self._window.resolve(self._state.window, 1, [0])
        if verdict.exceeded is not None:
            raise refusal(row, self._window)
        return verdict.state

    def _claim(self, shipment: Shipment, place: int) -> bool:
        # so that a frozen owner's late success and this nack can't both happen
        destination = self._pipeline.consumers()[shipment.consumer]
        name = self._names.child(shipment.plan, shipment.consumer, place, 1)
        child = shipment.child(name, place, 1)
        pipeline = self._pipeline.program.pipeline
        reached("before-claim", pipeline)
        found = blamed(self._node(shipment.consumer), destination.claim, child, "nacked")
        reached("after-claim", pipeline)
        return found != "delivered"

    def _record(
        self,
        shipment: Shipment,
        place: int,
        record: StagedRecord,
        row: NackRow,
        nack: Nack,
        window: str,
        moves: Offsets,
    ) -> None:
        plan, pipeline = shipment.plan, self._pipeline.program.pipeline
        staged = self.stage_letter(shipment, record, nack)
        part = self._keep(shipment, record, row)
        index = self._index(shipment, record, row, part, staged.hash)
        letter = StagedLetter(staged, shipment.consumer, place, (nack.code, nack.message))
        reached("before-nack", pipeline)
        self._store.deliveries.nack(
            plan, shipment.consumer, shipment.progress, window, index, part, record.source, letter, moves
        )
        reached("after-nack", pipeline)
        self._state.window = window
        self._rows.setdefault(shipment.consumer, []).append(row)
        try:
            self._publish(staged, plan)
        except Exception as error:
            self._failed = error
            raise

    def _fail_again(self, shipment: Shipment, record: StagedRecord, row: NackRow, moves: Offsets) -> None:
        """A dead letter that is sent again: it stays open, with its new reason. Its queue has it already."""
        plan, pipeline = shipment.plan, self._pipeline.program.pipeline
        key = letter_at(shipment.decision, record.source, record.ordinal)
        part = self._keep(shipment, record, row, key)
        index = self._index(shipment, record, row, part, "")._replace(again=key)
        reached("before-nack", pipeline)
        progress = shipment.progress
        self._store.deliveries.fail_again(plan, shipment.consumer, progress, index, part, record.source, moves)
        reached("after-nack", pipeline)
        self._rows.setdefault(shipment.consumer, []).append(row)

    def _index(self, shipment: Shipment, record: StagedRecord, row: NackRow, part: LetterPart, name: str) -> DeadLetter:
        plan = shipment.plan
        source, generation = origin_of(self._pipeline, record.source), span_of(plan, record.source).generation
        offset, namespace = offset_of(plan, record.source, record.ordinal), clean(record.record.collection)
        missed = encode_missed([shipment.consumer])
        return DeadLetter(
            source,
            generation,
            row.position,
            offset,
            row.node,
            row.code,
            row.message,
            namespace,
            name,
            missed,
            part.name,
        )

    def _keep(self, shipment: Shipment, record: StagedRecord, row: NackRow, key: Key = (-1, -1)) -> LetterPart:
        """The record and its original in the archive, durable before the index names them."""
        plan, failed = shipment.plan, record.record
        original = self._originals.of(plan, shipment.decision, record.source, record.ordinal)
        file = ArchiveFile(self._archive.folder, plan.step, 0)
        file.add(
            Letter(
                record.source, record.ordinal, row.position, clean(failed.collection), row.node, row.code, row.message,
                encode_missed([shipment.consumer]), *key, keep(failed), b"" if original is None else keep(original),
            )
        )  # fmt: skip
        part = file.finish()
        assert part is not None
        self._archive.sync()
        return part

    def stage_letter(self, shipment: Shipment, record: StagedRecord, nack: Nack) -> StagedDelivery:
        """The dead letter of one record, staged: a delivery of its own, named by the record's place in the step."""
        plan, program = shipment.plan, self._pipeline.program
        queue = self._pipeline.dead_letters
        # where the queue stages: it may have to rename it into its place
        beside = next(d.staging for d in shipment.decision.deliveries if d.consumer == DEAD_LETTERS)
        staging = storage.join(beside.rsplit("/", 1)[0], f"letter-{secrets.token_hex(8)}")
        skip = LETTERS + base_of(plan, shipment.decision.sources, record.source) + record.ordinal
        name = self._names.child(plan, DEAD_LETTERS, skip, 1)
        # for the queue's own processors, as in a task
        self._pipeline.clock.now_ns, self._pipeline.turn.hashes = plan.clock_ns, plan.hashes
        writer = queue.writer(WriterTask(staging, 0, secrets.token_hex(8), name, self._pipeline.turn))
        node = self._node(shipment.consumer)
        offset = offset_of(plan, record.source, record.ordinal)
        origin = Origin(program.pipeline, origin_of(self._pipeline, record.source), offset, name)
        failed = self._pipeline.redaction.record(record.record) if queue.prints else record.record
        rows, origins = processed(self._pipeline, [dead_letter(origin, node, nack, failed, plan.clock_ns)], [0])
        writer.place(record.source, record.ordinal, origins)
        refused = writer.write(rows)
        part = writer.finish()
        if refused:
            raise queue_refuses(refused[0].nack, self._node(DEAD_LETTERS))
        if part is not None:
            storage.sync(staging)
            storage.sync(staging.rsplit("/", 1)[0])
        target = blamed(self._node(DEAD_LETTERS), queue.target, self._state.targets.get(DEAD_LETTERS))
        return StagedDelivery(DEAD_LETTERS, "dlq", name, staging, [part] if part else [], target, skip)

    def _row(self, shipment: Shipment, record: StagedRecord, nack: Nack) -> NackRow:
        message = clean(nack.message[:2000])
        position, node = clean(str(record.record.position)), self._node(shipment.consumer)
        return NackRow(record.source, record.ordinal, position, node, nack.code, message, by_destination=True)

    def _node(self, consumer: str) -> str:
        return f"{self._pipeline.program.pipeline}:{consumer}"
