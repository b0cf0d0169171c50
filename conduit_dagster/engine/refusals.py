"""Records refused at publishing: passed through the nack window in order, then given dead letters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from conduit_dagster.engine.dead_letters.archive import ArchivedLetter, ArchiveFile, keep
from conduit_dagster.engine.dead_letters.late_letters import LateLetters, StepOriginals
from conduit_dagster.engine.dead_letters.letter_layout import PIECES, clean, encode_missed, said
from conduit_dagster.engine.dead_letters.replay_source import letter_at
from conduit_dagster.engine.delivery_progress import Shipment
from conduit_dagster.engine.offset_updates import offset_of, origin_of, span_of
from conduit_dagster.engine.plan import planned_target
from conduit_dagster.engine.prepare import index_row
from conduit_dagster.engine.resolve import refusal
from conduit_dagster.engine.stage_job import NackRow
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.record import Nack
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import StagedRecord
from conduit_dagster.state.dead_letters import MissedCopy
from conduit_dagster.state.delivery_store import NackBatch, Offsets
from conduit_dagster.state.steps import (
    DeadLetter,
    Decision,
    DeliveryChild,
    DeliveryProgress,
    LateLetter,
    LetterPart,
    Plan,
    StagedDelivery,
)


class RefusedRecord(NamedTuple):
    """A record refused by its destination."""

    place: int
    record: StagedRecord
    nack: Nack
    in_pieces: bool
    """Whether the delivery holds other parts of the same source record."""


class RefusalOutcome(NamedTuple):
    """Outcome for records that were refused together."""

    nacked: list[int]
    """Places of the records that became nacks."""
    delivered: list[int]
    """Places of the records that the destination already had."""
    stop: int | None = None
    """Place of the first record that the window does not accept; neither it nor any record after it is recorded."""
    error: ConduitError | None = None
    """The error of that record."""


Advance = Callable[[RefusalOutcome], tuple[DeliveryProgress, Offsets]]
"""Returns the delivery's progress, and the consumer's offsets, after this outcome."""


class _Refused(NamedTuple):
    place: int
    record: StagedRecord
    nack: Nack
    row: NackRow
    source: str
    """The connector of the record, and its offset there."""
    offset: int
    missed: list[str]
    original: bytes
    has_letter: bool
    """Whether another copy of it failed in this step."""
    before: bool
    """Whether an earlier step recorded its nack."""

    @property
    def key(self) -> tuple[str, int]:
        """The source record."""
        return self.source, self.offset


class Refusals:
    """Recorder of refused records as nacks. Safe to call from several publishing threads."""

    def __init__(self, context: StepContext, originals: StepOriginals, letters: LateLetters) -> None:
        self._context, self._originals, self._letters = context, originals, letters
        self._store, self._window = context.store.deliveries, context.settings.window
        self._lock = threading.Lock()
        self._rows: dict[str, list[NackRow]] = {}
        self._failed: Exception | None = None

    def take_rows(self) -> dict[str, list[NackRow]]:
        """Return the nacks since the last call, by the destination that refused them."""
        rows, self._rows = self._rows, {}
        return rows

    def recall(self, plan: Plan, decision: Decision) -> None:
        """Start from the nacks that earlier attempts to publish a prepared step have recorded: it reports them all."""
        self._rows = {}
        if plan.replay:  # its letters keep the rows that they had
            return
        names = {span.connector: span.source for span in plan.ranges}
        staged = sum(count.nacked for count in decision.sources.values())
        for source, node, code, message in self._store.refused_late(plan.step, staged):
            row = NackRow(names[source], 0, "", node, code, message, by_destination=True)
            self._rows.setdefault(node, []).append(row)

    def masked(self, shipment: Shipment, record: StagedRecord, text: str) -> str:
        """Return a text without the redacted values of a record."""
        return self._originals.redact(shipment, record, text)

    def refuse_all(self, shipment: Shipment, records: Sequence[RefusedRecord], advance: Advance) -> RefusalOutcome:
        """Record nacks together and publish their dead letters; the shipment's progress moves as ``advance`` returns.

        ``records``: at most ``NACKED_TOGETHER``, in order. The window takes them in this order; those before the first
        that it does not accept are recorded, in one transaction. If there are none, nothing is recorded and the
        progress stays.
        """
        with self._lock:  # the window takes nacks one after another
            if self._failed is not None:
                # the place of a letter in the queue follows from the previous letter, which was not published
                raise self._failed
            found = self._found(shipment, records)
            accepted = self._accepted(found)
            claimed = self._claim(shipment, [one.place for one in found[:accepted]]) if accepted else set[int]()
            nacked = [one for one in found[:accepted] if one.place not in claimed]
            outcome = RefusalOutcome([one.place for one in nacked], sorted(claimed))
            if accepted < len(found):
                row = found[accepted].row
                outcome = outcome._replace(stop=found[accepted].place, error=refusal(row, self._window))
            if nacked:
                self._record(shipment, nacked, *advance(outcome))
            return outcome

    # -- contents and origins -----------------------------------------------------------------------------------

    def _found(self, shipment: Shipment, records: Sequence[RefusedRecord]) -> list[_Refused]:
        plan = shipment.plan
        offsets = [offset_of(plan, one.record.source, one.record.ordinal) for one in records]
        sources = [origin_of(plan, one.record.source) for one in records]
        keys = list(zip(sources, offsets, strict=True))
        known = set[tuple[str, int]]() if plan.replay else self._store.nacked_among(plan.step, keys)
        return [self._one(shipment, one, key, known) for one, key in zip(records, keys, strict=True)]

    def _one(
        self, shipment: Shipment, refused: RefusedRecord, key: tuple[str, int], known: set[tuple[str, int]]
    ) -> _Refused:
        plan, record = shipment.plan, refused.record
        nack = Nack(refused.nack.code, self._originals.redact(shipment, record, refused.nack.message))
        position, node = clean(str(record.record.position)), self._context.node(shipment.consumer)
        return _Refused(
            refused.place,
            record,
            nack,
            NackRow(record.source, record.ordinal, position, node, nack.code, said(nack), by_destination=True),
            *key,
            [*([PIECES] if refused.in_pieces else []), shipment.consumer],
            b"" if key in known else self._originals.of(shipment, record),
            key in known,
            bool(plan.replay) or key[1] in plan.nacked.get(record.source, ()),
        )

    def _accepted(self, found: Sequence[_Refused]) -> int:
        """Return how many records, from the first on, the window accepts."""
        window = self._context.state.window
        seen = set[tuple[str, int]]()
        for number, one in enumerate(found):
            # one source record makes at most one nack and one dead letter, however many of its copies fail
            if one.has_letter or one.before or one.key in seen:
                continue
            verdict = self._window.resolve(window, 1, [0])
            if verdict.exceeded is not None:
                return number
            window = verdict.state
            seen.add(one.key)
        return len(found)

    def _claim(self, shipment: Shipment, places: Sequence[int]) -> set[int]:
        """Claim each record as nacked; return the places of those that the destination already has."""
        # excludes that both a frozen owner's late success and these nacks take effect
        context = self._context
        destination = context.consumers[shipment.consumer]
        children = [context.hashes.delivery(shipment, DeliveryChild(place, 1)) for place in places]
        reached("before-claim", context.name)
        found = blamed(context.node(shipment.consumer), destination.claim_all, children, "nacked")
        reached("after-claim", context.name)
        return {place for place, state in zip(places, found, strict=True) if state == "delivered"}

    # -- recording ----------------------------------------------------------------------------------------------

    def _record(
        self, shipment: Shipment, nacked: Sequence[_Refused], progress: DeliveryProgress, offsets: Offsets
    ) -> None:
        plan, pipeline = shipment.plan, self._context.name
        fresh, again, missed = _sorted_out(nacked, bool(plan.replay))
        staged = self._letters.stage(shipment, [(one.record, one.nack) for one in fresh]) if fresh else None
        rows, part = self._keep(shipment, fresh, again, staged.hash if staged else "")
        letter = self._late_letter(shipment, staged, fresh, part) if staged and part else None
        window = self._context.state.window
        if fresh:  # the window has accepted them
            window = self._window.resolve(window, len(fresh), range(len(fresh))).state
        copies = [MissedCopy(one.source, one.offset, one.missed) for one in missed]
        counts = Counter(one.record.source for one in (*fresh, *again))
        reached("before-nack", pipeline)
        batch = NackBatch(shipment.consumer, progress, rows, part, letter, copies, counts)
        self._store.nack_all(plan, batch, offsets, window)
        reached("after-nack", pipeline)
        shipment.progress = progress
        self._context.state.window = window
        in_order = sorted((*fresh, *again), key=lambda one: one.place)
        self._rows.setdefault(shipment.consumer, []).extend(one.row for one in in_order)
        if letter is not None:
            self._publish(shipment, letter)

    def _late_letter(
        self, shipment: Shipment, staged: StagedDelivery, fresh: Sequence[_Refused], part: LetterPart
    ) -> LateLetter:
        first, *others = fresh
        more = [(one.place, one.nack.code, one.nack.message) for one in others]
        nack = first.nack.code, first.nack.message
        queue = planned_target(self._context.pipeline.dead_letters.destination)
        return LateLetter(staged, shipment.consumer, first.place, nack, (part.name, 0), more, queue)

    def _publish(self, shipment: Shipment, letter: LateLetter) -> None:
        try:
            self._letters.publish(letter.delivery, shipment.plan)
        except Exception as error:
            self._failed = error
            raise

    def _keep(
        self, shipment: Shipment, fresh: Sequence[_Refused], again: Sequence[_Refused], name: str
    ) -> tuple[list[DeadLetter], LetterPart | None]:
        """Archive records and originals in one file, durably, before the index names it; return the index's rows.

        Records with a letter for the queue come first in the file: they may have to be staged again from there. The
        rows are in record order. ``name``: the delivery of the letters to the queue.
        """
        plan, archive = shipment.plan, self._context.archive
        file = ArchiveFile(archive.folder, plan.step, 0)
        letters = [(one, self._letter(shipment, one)) for one in (*fresh, *again)]
        for _, archived in letters:
            file.add(archived)
        part = file.finish()
        if part is None:
            return [], None
        archive.sync()
        rows: list[tuple[int, DeadLetter]] = []
        for line, (one, archived) in enumerate(letters):
            # the queue already has the letter of a record that an earlier step nacked
            queued = name if line < len(fresh) else ""
            rows.append((one.place, index_row(archived, span_of(plan, archived.source), queued, part.name, line)))
        return [row for _, row in sorted(rows, key=lambda placed: placed[0])], part

    def _letter(self, shipment: Shipment, refused: _Refused) -> ArchivedLetter:
        record, row = refused.record, refused.row
        # for a replayed dead letter: the one that stays open
        is_replay = bool(shipment.plan.replay)
        key = letter_at(shipment.decision, record.source, record.ordinal).key if is_replay else (-1, -1)
        namespace = clean(record.record.collection)
        return ArchivedLetter(
            record.source, record.ordinal, row.position, namespace, row.node, row.code, row.message,
            encode_missed(refused.missed), *key, keep(record.record), refused.original,
        )  # fmt: skip


def _sorted_out(nacked: Sequence[_Refused], is_replay: bool) -> tuple[list[_Refused], list[_Refused], list[_Refused]]:
    """Return records with a new nack, those nacked in an earlier step, and further copies of either.

    In a replay each copy's letter fails again separately.
    """
    fresh, again, missed = list[_Refused](), list[_Refused](), list[_Refused]()
    seen = set[tuple[str, int]]()
    for one in nacked:
        if one.has_letter or one.key in seen:
            missed.append(one)
            continue
        (again if one.before else fresh).append(one)
        if not is_replay:
            seen.add(one.key)
    return fresh, again, missed
