"""Records that a destination refuses at publishing: the nack window next in order, then a dead letter of their own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.dead_letters.archive import Archive, ArchivedLetter, ArchiveFile
from conduit_dagster.engine.dead_letters.index import index_row
from conduit_dagster.engine.dead_letters.kept import keep, kept
from conduit_dagster.engine.dead_letters.letter_layout import NackOrigin, clean, dead_letter, said
from conduit_dagster.engine.dead_letters.missed import PIECES, encode_missed
from conduit_dagster.engine.dead_letters.queue_nodes import processed
from conduit_dagster.engine.dead_letters.replay_source import letter_at
from conduit_dagster.engine.dead_letters.step_originals import StepOriginals
from conduit_dagster.engine.delivery_errors import queue_refuses
from conduit_dagster.engine.delivery_progress import Shipment, after
from conduit_dagster.engine.error_context import blamed
from conduit_dagster.engine.ledger import NackRow
from conduit_dagster.engine.nack_window import NackWindow
from conduit_dagster.engine.naming import LETTERS, Names
from conduit_dagster.engine.offset_updates import Offsets, offset_of, origin_of, span_of
from conduit_dagster.engine.resolve import base_of, refusal
from conduit_dagster.engine.restage import Restaged, content, differs
from conduit_dagster.record import Nack
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import StagedRecord, WriterTask
from conduit_dagster.state.dead_letters import Missed
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import DeadLetter, Decision, LateLetter, LetterPart, Plan, StagedDelivery
from conduit_dagster.state.store import PipelineStore


class _Refused(NamedTuple):
    """A record that its destination refuses."""

    shipment: Shipment
    place: int
    record: StagedRecord
    nack: Nack
    row: NackRow
    source: str
    """The connector that it comes from, and its offset there."""
    offset: int
    missed: list[str]
    has_letter: bool
    """Another copy of it failed in this step."""
    before: bool
    """It made its nack in a step before this one."""


class Refusals:
    """Makes nacks of what destinations refuse. Safe to call from several publishing threads."""

    def __init__(
        self,
        pipeline: CompiledPipeline,
        store: PipelineStore,
        state: PipelineState,
        window: NackWindow,
        archive: Archive,
        restaged: Restaged,
        publish: Callable[[StagedDelivery, Plan], None],
    ) -> None:
        self._pipeline, self._store, self._state, self._window = pipeline, store, state, window
        self._archive, self._originals = archive, StepOriginals(pipeline, state, archive, restaged)
        self._publish = publish
        self._names = Names(pipeline)
        self._lock = threading.Lock()
        self._rows: dict[str, list[NackRow]] = {}
        self._failed: Exception | None = None

    def take_rows(self) -> dict[str, list[NackRow]]:
        """The nacks since the last call, by the destination that refused."""
        rows, self._rows = self._rows, {}
        return rows

    def refuse(
        self, shipment: Shipment, place: int, record: StagedRecord, nack: Nack, moves: Offsets, in_pieces: bool
    ) -> bool:
        """Records the nack and publishes its dead letter; the shipment's progress moves past the record.

        ``in_pieces``: the delivery holds other parts of the same source record.

        False where the destination turns out to have the record. Raises the nack's error where the window does not
        accept it: nothing is recorded then and the step stays prepared.
        """
        with self._lock:  # the window takes nacks one after another
            if self._failed is not None:
                # the place of a letter in the queue follows from the one before it, which did not get there
                raise self._failed
            found = self._found(shipment, place, record, nack, in_pieces)
            # one source record makes at most one nack and one dead letter, however many of its copies fail
            window = self._state.window if found.has_letter or found.before else self._accept(found.row)
            if not self._claim(shipment, place):
                return False
            shipment.progress = after(shipment.progress, 1, refused=1)
            if found.has_letter:
                missed = Missed(found.source, found.offset, found.missed)
                self._store.deliveries.missed(shipment.plan.step, shipment.consumer, shipment.progress, missed, moves)
            elif found.before:
                self._record_again(found, moves)
            else:
                self._record(found, window, moves)
            return True

    def _found(self, shipment: Shipment, place: int, record: StagedRecord, nack: Nack, in_pieces: bool) -> _Refused:
        plan, name = shipment.plan, record.source
        nack = Nack(nack.code, self.masked(shipment, record, nack.message))
        source, offset = origin_of(plan, name), offset_of(plan, name, record.ordinal)
        return _Refused(
            shipment,
            place,
            record,
            nack,
            self._row(shipment, record, nack),
            source,
            offset,
            [*([PIECES] if in_pieces else []), shipment.consumer],
            not plan.replay and self._store.deliveries.is_nacked(plan.step, source, offset),
            bool(plan.replay) or offset in plan.nacked.get(name, ()),
        )

    def masked(self, shipment: Shipment, record: StagedRecord, text: str) -> str:
        """A text without what is redacted of a record, of it as it is and as it was read."""
        redaction = self._pipeline.redaction
        if not redaction:
            return text
        original = self._originals.of(shipment, record)
        if not original:
            # under which fields a row as it was staged has what is redacted can't be known
            return "its text is left out, for it may hold what is redacted"
        return redaction.text(text, [record.record, kept(original)])

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

    def _record(self, found: _Refused, window: str, moves: Offsets) -> None:
        shipment, plan, pipeline = found.shipment, found.shipment.plan, self._pipeline.program.pipeline
        staged = self._stage_letter(shipment, found.record, found.nack)
        index, part = self._keep(found, staged.hash)
        nack = found.nack.code, found.nack.message
        letter = LateLetter(staged, shipment.consumer, found.place, nack, (part.name, 0))
        reached("before-nack", pipeline)
        self._store.deliveries.nack(
            plan, shipment.consumer, shipment.progress, window, index, part, found.record.source, letter, moves
        )
        reached("after-nack", pipeline)
        self._state.window = window
        self._rows.setdefault(shipment.consumer, []).append(found.row)
        try:
            self._publish(staged, plan)
        except Exception as error:
            self._failed = error
            raise

    def _record_again(self, found: _Refused, moves: Offsets) -> None:
        """A record that made its nack before: its queue has it already."""
        shipment, pipeline = found.shipment, self._pipeline.program.pipeline
        index, part = self._keep(found, "")
        reached("before-nack", pipeline)
        self._store.deliveries.nack_again(
            shipment.plan, shipment.consumer, shipment.progress, index, part, found.record.source, moves
        )
        reached("after-nack", pipeline)
        self._rows.setdefault(shipment.consumer, []).append(found.row)

    def _keep(self, found: _Refused, name: str) -> tuple[DeadLetter, LetterPart]:
        """The record and its original in the archive, durable before the index names them; and the index's row."""
        plan, letter = found.shipment.plan, self._letter(found)
        file = ArchiveFile(self._archive.folder, plan.step, 0)
        file.add(letter)
        part = file.finish()
        assert part is not None
        self._archive.sync()
        return index_row(letter, span_of(plan, letter.source), name, part.name, 0), part

    def _letter(self, found: _Refused) -> ArchivedLetter:
        shipment, record, row = found.shipment, found.record, found.row
        # of a dead letter that is sent again the one that stays open
        is_replay = bool(shipment.plan.replay)
        key = letter_at(shipment.decision, record.source, record.ordinal).key if is_replay else (-1, -1)
        original = self._originals.of(shipment, record)
        namespace = clean(record.record.collection)
        return ArchivedLetter(
            record.source, record.ordinal, row.position, namespace, row.node, row.code, row.message,
            encode_missed(found.missed), *key, keep(record.record), original,
        )  # fmt: skip

    def stage_letter_again(self, plan: Plan, decision: Decision, letter: LateLetter) -> StagedDelivery:
        """A recorded letter whose staging is lost, from the archive: neither source nor code is asked for the record.

        Raises ``FatalError`` (``delivery.rebuild_differs``) where the queue's own settings or processors have changed,
        and ``dead_letters.damaged``.
        """
        part, line = letter.archive
        (kept_one,) = self._archive.letters(part, [line])
        record = StagedRecord(kept_one.source, kept_one.ordinal, kept(kept_one.failed))
        refused_by = next(staged for staged in decision.deliveries if staged.consumer == letter.consumer)
        shipment = Shipment(plan, decision, refused_by, is_recovered=True)
        made = self._stage_letter(shipment, record, Nack(*letter.nack))
        if [content(part) for part in made.parts] != [content(part) for part in letter.delivery.parts]:
            raise differs(plan, letter.delivery)
        return msgspec.structs.replace(letter.delivery, staging=made.staging, parts=made.parts)

    def _stage_letter(self, shipment: Shipment, record: StagedRecord, nack: Nack) -> StagedDelivery:
        """The dead letter of one record, staged: a delivery of its own, named by the record's place in the step."""
        plan, decision = shipment.plan, shipment.decision
        program = self._pipeline.program
        queue = self._pipeline.dead_letters
        # where the queue stages: it may have to rename it into its place
        beside = next(d.staging for d in decision.deliveries if d.consumer == DEAD_LETTERS)
        staging = storage.join(beside.rsplit("/", 1)[0], f"letter-{secrets.token_hex(8)}")
        skip = LETTERS + base_of(plan, decision.sources, record.source) + record.ordinal
        name = self._names.child(plan, DEAD_LETTERS, skip, 1)
        # for the queue's own processors, as in a task
        self._pipeline.clock.now_ns, self._pipeline.turn.hashes = plan.clock_ns, plan.hashes
        writer = queue.writer(WriterTask(staging, 0, secrets.token_hex(8), name, self._pipeline.turn))
        node = self._node(shipment.consumer)
        offset = offset_of(plan, record.source, record.ordinal)
        origin = NackOrigin(program.pipeline, origin_of(plan, record.source), offset, name)
        failed = self._pipeline.redaction.record(record.record) if queue.prints else record.record
        rows, origins = processed(self._pipeline, [dead_letter(origin, node, nack, failed, plan.clock_ns)], [0])
        writer.place(record.source, record.ordinal, origins)
        refused = writer.write(rows)
        part = writer.finish()
        if refused:
            said = refused[0].nack
            told = Nack(said.code, self.masked(shipment, record, said.message))
            raise queue_refuses(told, self._node(DEAD_LETTERS))
        if part is not None:
            storage.sync(staging)
            storage.sync(staging.rsplit("/", 1)[0])
        target = blamed(self._node(DEAD_LETTERS), queue.target, self._state.targets.get(DEAD_LETTERS))
        return StagedDelivery(DEAD_LETTERS, "dlq", name, staging, [part] if part else [], target, skip)

    def _row(self, shipment: Shipment, record: StagedRecord, nack: Nack) -> NackRow:
        position, node = clean(str(record.record.position)), self._node(shipment.consumer)
        return NackRow(record.source, record.ordinal, position, node, nack.code, said(nack), by_destination=True)

    def _node(self, consumer: str) -> str:
        return f"{self._pipeline.program.pipeline}:{consumer}"
