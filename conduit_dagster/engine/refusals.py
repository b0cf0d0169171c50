"""Records that a destination refuses at publishing: the nack window next in order, then a dead letter of their own."""

from __future__ import annotations

import threading
from typing import NamedTuple

from conduit_dagster.engine.dead_letters.archive import ArchivedLetter, ArchiveFile, keep
from conduit_dagster.engine.dead_letters.index import index_row
from conduit_dagster.engine.dead_letters.late_letters import LateLetters
from conduit_dagster.engine.dead_letters.letter_layout import PIECES, clean, encode_missed, said
from conduit_dagster.engine.dead_letters.replay_source import letter_at
from conduit_dagster.engine.dead_letters.step_originals import StepOriginals
from conduit_dagster.engine.delivery_progress import Shipment, after
from conduit_dagster.engine.offset_updates import Offsets, offset_of, origin_of, span_of
from conduit_dagster.engine.resolve import refusal
from conduit_dagster.engine.stage_job import NackRow
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.record import Nack
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import StagedRecord
from conduit_dagster.state.dead_letters import MissedCopy
from conduit_dagster.state.steps import DeadLetter, LateLetter, LetterPart


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
    """Recorder of the records that destinations refuse, as nacks. Safe to call from several publishing threads."""

    def __init__(self, context: StepContext, originals: StepOriginals, letters: LateLetters) -> None:
        self._context, self._originals, self._letters = context, originals, letters
        self._store, self._window = context.store.deliveries, context.settings.window
        self._lock = threading.Lock()
        self._rows: dict[str, list[NackRow]] = {}
        self._failed: Exception | None = None

    def take_rows(self) -> dict[str, list[NackRow]]:
        """Return the nacks since the last call, by the destination that refused."""
        rows, self._rows = self._rows, {}
        return rows

    def refuse(
        self, shipment: Shipment, place: int, record: StagedRecord, nack: Nack, moves: Offsets, in_pieces: bool
    ) -> bool:
        """Record the nack and publish its dead letter; the shipment's progress moves past the record.

        ``in_pieces``: the delivery holds other parts of the same source record.

        Return False if the destination turns out to have the record. Raises the nack's error if the window does not
        accept it: nothing is recorded then and the step stays prepared.
        """
        with self._lock:  # the window takes nacks one after another
            if self._failed is not None:
                # the place of a letter in the queue follows from the one before it, which did not get there
                raise self._failed
            found = self._found(shipment, place, record, nack, in_pieces)
            # one source record makes at most one nack and one dead letter, however many of its copies fail
            window = self._context.state.window if found.has_letter or found.before else self._accept(found.row)
            if not self._claim(shipment, place):
                return False
            shipment.progress = after(shipment.progress, 1, refused=1)
            if found.has_letter:
                missed = MissedCopy(found.source, found.offset, found.missed)
                self._store.missed(shipment.plan.step, shipment.consumer, shipment.progress, missed, moves)
            elif found.before:
                self._record_again(found, moves)
            else:
                self._record(found, window, moves)
            return True

    def _found(self, shipment: Shipment, place: int, record: StagedRecord, nack: Nack, in_pieces: bool) -> _Refused:
        plan, name = shipment.plan, record.source
        nack = Nack(nack.code, self._originals.redact(shipment, record, nack.message))
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
            not plan.replay and self._store.is_nacked(plan.step, source, offset),
            bool(plan.replay) or offset in plan.nacked.get(name, ()),
        )

    def masked(self, shipment: Shipment, record: StagedRecord, text: str) -> str:
        """Return a text without the redacted values of a record."""
        return self._originals.redact(shipment, record, text)

    def _accept(self, row: NackRow) -> str:
        verdict = self._window.resolve(self._context.state.window, 1, [0])
        if verdict.exceeded is not None:
            raise refusal(row, self._window)
        return verdict.state

    def _claim(self, shipment: Shipment, place: int) -> bool:
        # so that a frozen owner's late success and this nack can't both happen
        context = self._context
        destination = context.consumers[shipment.consumer]
        name = context.names.child(shipment.plan, shipment.consumer, place, 1)
        child = shipment.child(name, place, 1)
        reached("before-claim", context.name)
        found = blamed(context.node(shipment.consumer), destination.claim, child, "nacked")
        reached("after-claim", context.name)
        return found != "delivered"

    def _record(self, found: _Refused, window: str, moves: Offsets) -> None:
        shipment, plan, pipeline = found.shipment, found.shipment.plan, self._context.name
        staged = self._letters.stage(shipment, found.record, found.nack)
        index, part = self._keep(found, staged.hash)
        nack = found.nack.code, found.nack.message
        letter = LateLetter(staged, shipment.consumer, found.place, nack, (part.name, 0))
        reached("before-nack", pipeline)
        self._store.nack(
            plan, shipment.consumer, shipment.progress, window, index, part, found.record.source, letter, moves
        )
        reached("after-nack", pipeline)
        self._context.state.window = window
        self._rows.setdefault(shipment.consumer, []).append(found.row)
        try:
            self._letters.publish(staged, plan)
        except Exception as error:
            self._failed = error
            raise

    def _record_again(self, found: _Refused, moves: Offsets) -> None:
        """Record the nack of a record that was nacked by an earlier step: the queue has its letter already."""
        shipment, pipeline = found.shipment, self._context.name
        index, part = self._keep(found, "")
        reached("before-nack", pipeline)
        self._store.nack_again(
            shipment.plan, shipment.consumer, shipment.progress, index, part, found.record.source, moves
        )
        reached("after-nack", pipeline)
        self._rows.setdefault(shipment.consumer, []).append(found.row)

    def _keep(self, found: _Refused, name: str) -> tuple[DeadLetter, LetterPart]:
        """Archive the record and its original, durably, before the index names them; return the index's row as well."""
        plan, letter, archive = found.shipment.plan, self._letter(found), self._context.archive
        file = ArchiveFile(archive.folder, plan.step, 0)
        file.add(letter)
        part = file.finish()
        assert part is not None
        archive.sync()
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

    def _row(self, shipment: Shipment, record: StagedRecord, nack: Nack) -> NackRow:
        position, node = clean(str(record.record.position)), self._context.node(shipment.consumer)
        return NackRow(record.source, record.ordinal, position, node, nack.code, said(nack), by_destination=True)
