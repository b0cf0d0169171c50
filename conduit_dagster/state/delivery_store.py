"""The transactions of publishing: progress of each delivery, offsets of consumers, dead letters of destinations."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from conduit_dagster.state.dead_letters import MissedCopy, add_letters, add_missed, fail_again, insert_parts
from conduit_dagster.state.history import record_event
from conduit_dagster.state.lease import Transactions
from conduit_dagster.state.row_statements import insert, put, update
from conduit_dagster.state.steps import (
    DeadLetter,
    Decision,
    DeliveryProgress,
    LastInNamespace,
    LateLetter,
    LetterPart,
    Plan,
    decode,
)
from conduit_dagster.state.tables import collections, consumers, dead_letters, deliveries, offsets, sources, steps

EVERYTHING = "*"
"""The namespace of a source's overall offset."""
Offsets = dict[str, dict[str, int]]
"""Source to namespace to the last handled offset."""
ByConsumer = dict[str, dict[str, int]]
"""Consumer to namespace to offset, for one source."""


def move_offsets(connection: sa.Connection, pipeline: str, consumers: Sequence[str], upto: Offsets) -> None:
    """Advance the offsets of each consumer; a lower value never moves an offset back (CASES C1)."""
    rows = [
        row
        for consumer in consumers
        for source, wanted in upto.items()
        for row in _rows(pipeline, consumer, source, wanted, time.time_ns())
    ]
    put(connection, offsets, rows, rising="offset")


def offsets_of(connection: sa.Connection, pipeline: str, source: str) -> ByConsumer:
    """Return the offsets of every consumer of a source."""
    table = offsets.c
    query = sa.select(table.consumer, table.namespace, table.offset)
    found: ByConsumer = {}
    for row in connection.execute(query.where(table.pipeline == pipeline, table.source == source)):
        found.setdefault(row[0], {})[row[1]] = row[2]
    return found


def set_offsets(
    connection: sa.Connection, pipeline: str, consumer: str, source: str, wanted: Mapping[str, int], at_ns: int
) -> None:
    """Set offsets for an operator. They may move back: later records are then sent again if the log has them.

    Setting the source's overall offset (``*``) also limits those of its namespaces: moved back, to at most its value;
    moved forward, to at least its value.
    """
    before = offsets_of(connection, pipeline, source).get(consumer, {})
    after = {**_taken_along(before, wanted.get(EVERYTHING)), **wanted}
    put(connection, offsets, _rows(pipeline, consumer, source, after, at_ns))


def _taken_along(before: Mapping[str, int], overall: int | None) -> dict[str, int]:
    if overall is None:
        return {}
    bound = min if overall < before.get(EVERYTHING, -1) else max
    return {namespace: bound(offset, overall) for namespace, offset in before.items() if namespace != EVERYTHING}


def _rows(pipeline: str, consumer: str, source: str, wanted: Mapping[str, int], at_ns: int) -> list[dict[str, Any]]:
    own = {"pipeline": pipeline, "consumer": consumer, "source": source}
    return [{**own, "namespace": namespace, "offset": offset, "at_ns": at_ns} for namespace, offset in wanted.items()]


def move_collections(
    connection: sa.Connection, pipeline: str, seen: Mapping[str, tuple[int, Mapping[str, LastInNamespace]]]
) -> None:
    """Store the state of each collection: in its copy, at the end of the copy, or in sync.

    ``seen``: by source, the offset from which the ordinals count, and the last record of each collection.
    """
    own = {"pipeline": pipeline, "at_ns": time.time_ns()}
    rows = [
        {**own, "source": source, "namespace": namespace, "mode": last.mode, "offset": base + last.ordinal}
        for source, (base, lasts) in seen.items()
        for namespace, last in lasts.items()
    ]
    put(connection, collections, rows)


class NackBatch(NamedTuple):
    """Records of one delivery that were refused together."""

    consumer: str
    progress: DeliveryProgress
    """Progress of the delivery past these records."""
    rows: list[DeadLetter]
    """Rows of the index, in record order: for new letters, and for letters that fail again."""
    part: LetterPart | None
    """The archive file with their records; None without rows."""
    letter: LateLetter | None
    """Their delivery to the queue; None if the queue already has all of their letters."""
    missed: list[MissedCopy]
    """Copies of records that have a letter in this step."""
    counts: Mapping[str, int]
    """By source, how many of them are nacks."""


ONCE = "once"
"""State of an at-most-once delivery from its step's prepare to the end of its publishing."""


class CutOff(NamedTuple):
    """At-most-once delivery that a killed process was publishing."""

    step: int
    consumer: str
    records: int
    """Number of its records; nobody knows how many of them were delivered."""


class DeliveryStore:
    """The deliveries of one pipeline, for the owner of its lease."""

    def __init__(self, transactions: Transactions, pipeline: str) -> None:
        self._transactions = transactions
        self._run = transactions.run
        self._id = pipeline

    def delivered(
        self, step: int, consumer: str, records: int, target: Mapping[str, Any], offsets: Offsets, skip: int = 0
    ) -> None:
        """Line 6: finish a delivery that is published and durable; move the consumer's offsets past it."""

        def work(connection: sa.Connection) -> None:
            end_delivery(connection, self._id, step, consumer, records, target, skip)
            move_offsets(connection, self._id, [consumer], offsets)

        self._run(work)

    def progress(self, step: int, consumer: str, progress: DeliveryProgress, offsets: Offsets) -> None:
        """Record that a part of a delivery is acked."""

        def work(connection: sa.Connection) -> None:
            put_progress(connection, self._id, step, consumer, progress)
            move_offsets(connection, self._id, [consumer], offsets)

        self._run(work)

    def nack_all(self, plan: Plan, batch: NackBatch, offsets: Offsets, window: str) -> None:
        """Nack records that a destination refused at publishing: store progress, window, index rows and letters.

        A record nacked in an earlier step already has its letter in the queue. In a replay that letter stays open, with
        the new reason; for a destination added later it gets a row.
        """

        def work(connection: sa.Connection) -> None:
            put_progress(connection, self._id, plan.step, batch.consumer, batch.progress)
            move_offsets(connection, self._id, [batch.consumer], offsets)
            if batch.part is not None:
                insert_parts(connection, self._id, plan.step, [batch.part], are_indexed=True)
            add_letters(connection, self._id, plan.step, [row for row in batch.rows if row.again is None])
            fail_again(connection, self._id, plan.replay, [row for row in batch.rows if row.again is not None])
            for missed in batch.missed:
                add_missed(connection, self._id, plan.step, missed)
            self._count_nacks(connection, batch.counts)
            if batch.letter is not None:
                self._add_delivery(connection, plan.step, batch.letter)

        self._run(work, window=window)

    def _count_nacks(self, connection: sa.Connection, counts: Mapping[str, int]) -> None:
        # the step's counts are added when it is done, with these records among the acked ones
        for source, nacks in counts.items():
            mine = {"pipeline": self._id, "source": source}
            update(connection, sources, mine, add={"acked": -nacks, "nacked": nacks})

    def _add_delivery(self, connection: sa.Connection, step: int, letter: LateLetter) -> None:
        own = {"pipeline": self._id, "step": step, "consumer": letter.delivery.consumer}
        values = {"skip": letter.delivery.skip, "hash": letter.delivery.hash, "state": "open", "handled": 0}
        text = msgspec.json.encode(letter).decode()
        insert(connection, deliveries, [{**own, **values, "pending": "", "staged": text}])

    def split(self, step: int, consumer: str, progress: DeliveryProgress, cause: str) -> None:
        """Split a delivery after a bulk error that names no record: its rest is sent as children."""

        def work(connection: sa.Connection) -> None:
            put_progress(connection, self._id, step, consumer, progress)
            record_event(connection, self._id, "delivery_split", step=step, consumer=consumer, cause=cause[:500])

        self._run(work)

    def retarget_letter(self, step: int, letter: LateLetter) -> None:
        """Change the target of a dead letter that is not published yet."""
        text = msgspec.json.encode(letter).decode()

        def work(connection: sa.Connection) -> None:
            mine = _delivery(self._id, step, letter.delivery.consumer, letter.delivery.skip)
            update(connection, deliveries, mine, {"staged": text})

        self._run(work)

    def nacked_among(self, step: int, records: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return which of the records (source and offset) were nacked in this step: each makes at most one nack."""
        if not records:
            return set()
        names, offsets = {source for source, _ in records}, [offset for _, offset in records]

        def work(connection: sa.Connection) -> set[tuple[str, int]]:
            column = dead_letters.c
            mine = (column.pipeline == self._id, column.step == step, column.source.in_(names))
            between = (column.offset >= min(offsets), column.offset <= max(offsets))
            found = connection.execute(sa.select(column.source, column.offset).where(*mine, *between))
            return {(source, offset) for source, offset in found} & set(records)

        return self._transactions.read(work)

    def refused_late(self, step: int, staged: int) -> list[tuple[str, str, str, str]]:
        """Return source, node, code and message of the step's nacks behind the first ``staged``, in order."""

        def work(connection: sa.Connection) -> list[tuple[str, str, str, str]]:
            column = dead_letters.c
            mine = (column.pipeline == self._id, column.step == step, column.number >= staged)
            found = sa.select(column.source, column.node, column.code, column.message).where(*mine)
            return [(*row,) for row in connection.execute(found.order_by(column.number))]

        return self._transactions.read(work)

    def nacked_offsets(self, names: Sequence[str], start: int, stop: int) -> list[int]:
        """Return the offsets in ``[start, stop)`` of records that were nacked when read under any of these names.

        Only as far back as the index of dead letters reaches.
        """

        def work(connection: sa.Connection) -> list[int]:
            mine = (dead_letters.c.pipeline == self._id, dead_letters.c.source.in_(names))
            within = (dead_letters.c.offset >= start, dead_letters.c.offset < stop)
            found = sa.select(dead_letters.c.offset).where(*mine, *within).distinct()
            return list(connection.execute(found.order_by(dead_letters.c.offset)).scalars())

        return self._transactions.read(work)

    # -- at-most-once -------------------------------------------------------------------------------------------

    def published_once(self, step: int, consumer: str) -> None:
        """Note that an at-most-once delivery is published, so that no later run takes it for a cut-off one."""
        self._run(lambda connection: _end_once(connection, self._id, step, consumer))

    def dropped(self, step: int, consumer: str, records: int, cause: str) -> None:
        """Discard the rest of a failed at-most-once delivery; count it and record it in the history."""
        detail = {"step": step, "consumer": consumer, "records": records, "cause": cause[:500]}

        def work(connection: sa.Connection) -> None:
            _end_once(connection, self._id, step, consumer)
            update(connection, consumers, {"pipeline": self._id, "consumer": consumer}, add={"delivered": -records})
            record_event(connection, self._id, "dropped", **detail)

        self._run(work)

    def end_cut_off(self) -> list[CutOff]:
        """End the at-most-once deliveries that a killed process was publishing, and record each in the history."""

        def work(connection: sa.Connection) -> list[CutOff]:
            found = _cut_off(connection, self._id)
            for one in found:
                _end_once(connection, self._id, one.step, one.consumer)
                record_event(connection, self._id, "cut_off", **one._asdict())
            return found

        return self._run(work) if self._transactions.read(lambda connection: _cut_off(connection, self._id)) else []


def _end_once(connection: sa.Connection, pipeline: str, step: int, consumer: str) -> None:
    update(connection, deliveries, {**_delivery(pipeline, step, consumer), "state": ONCE}, {"state": "done"})


def _cut_off(connection: sa.Connection, pipeline: str) -> list[CutOff]:
    own = (steps.c.pipeline == deliveries.c.pipeline) & (steps.c.step == deliveries.c.step)
    chosen = sa.select(deliveries.c.step, deliveries.c.consumer, steps.c.decision).join(steps, own)
    mine = (deliveries.c.pipeline == pipeline, deliveries.c.state == ONCE)
    found = connection.execute(chosen.where(*mine).order_by(deliveries.c.step, deliveries.c.consumer))
    return [CutOff(step, consumer, _records(decode(text, Decision), consumer)) for step, consumer, text in found]


def _records(decision: Decision, consumer: str) -> int:
    return next(delivery.records for delivery in decision.deliveries if delivery.consumer == consumer)


def put_progress(
    connection: sa.Connection, pipeline: str, step: int, consumer: str, progress: DeliveryProgress
) -> None:
    """Store the progress of a delivery; it may also move back."""
    values: dict[str, Any] = {"handled": progress.handled, "pending": msgspec.json.encode(progress).decode()}
    if progress.split:
        values["state"] = "split"
    update(connection, deliveries, _delivery(pipeline, step, consumer), values)


def end_delivery(
    connection: sa.Connection,
    pipeline: str,
    step: int,
    consumer: str,
    records: int,
    target: Mapping[str, Any],
    skip: int = 0,
) -> None:
    """Mark a delivery as done, with ``records`` records delivered; do nothing if it is done already."""
    if give_up_delivery(connection, pipeline, step, consumer, skip, records):
        who, values = {"pipeline": pipeline, "consumer": consumer}, {"step": step, "target": json.dumps(target)}
        update(connection, consumers, who, values, add={"delivered": records})


def give_up_delivery(
    connection: sa.Connection, pipeline: str, step: int, consumer: str, skip: int = 0, records: int = 0
) -> bool:
    """Mark a delivery as done, whose consumer stays where it ended before; return False if it is done already."""
    still = {**_delivery(pipeline, step, consumer, skip), "state": ("open", "split")}
    return update(connection, deliveries, still, {"state": "done", "pending": "", "handled": records})


def _delivery(pipeline: str, step: int, consumer: str, skip: int = 0) -> dict[str, Any]:
    return {"pipeline": pipeline, "step": step, "consumer": consumer, "skip": skip}
