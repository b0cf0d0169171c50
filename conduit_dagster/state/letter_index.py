"""Filling and trimming of the dead-letter index, some thousand rows per transaction: other pipelines wait for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from conduit_dagster.state.dead_letters import fail_again, insert_rows
from conduit_dagster.state.history import record_event
from conduit_dagster.state.lease import Transactions
from conduit_dagster.state.row_statements import update
from conduit_dagster.state.steps import DeadLetter, Plan, decode
from conduit_dagster.state.tables import dead_letter_parts, dead_letters, steps

_KEPT_CLOSED = 100_000
"""Minimum number of replayed or discarded letters to keep; open letters are always kept."""
_AT_ONCE = 5_000
"""Maximum number of letters deleted per transaction."""


class UnindexedPart(NamedTuple):
    """A file of the archive with letters that have no row yet."""

    plan: Plan
    """The step that wrote the file."""
    name: str
    letters: int
    indexed: int
    """Number of letters that have their row, from the first."""
    first: int
    """Number of the file's first letter in its step."""


class LetterIndex:
    """The index of one pipeline's dead letters, for the owner of its lease."""

    def __init__(self, transactions: Transactions, pipeline: str) -> None:
        self._transactions, self._run, self._id = transactions, transactions.run, pipeline

    def unindexed(self) -> list[UnindexedPart]:
        """Return the files of prepared steps whose letters have no rows yet, in letter order."""
        return self._transactions.read(self._unindexed)

    def _unindexed(self, connection: sa.Connection) -> list[UnindexedPart]:
        column = dead_letter_parts.c
        begun = sa.select(column.step).where(column.pipeline == self._id, column.indexed < column.letters).distinct()
        mine = (column.pipeline == self._id, column.step.in_(begun))
        found: list[UnindexedPart] = []
        first = 0
        plan: Plan | None = None
        # by name is by task. Letters of refused records have files too, but none before all of these are indexed
        for row in connection.execute(sa.select(dead_letter_parts).where(*mine).order_by(column.step, column.part)):
            if plan is None or plan.step != row.step:
                text = sa.select(steps.c.plan).where(steps.c.pipeline == self._id, steps.c.step == row.step)
                plan, first = decode(connection.execute(text).scalar_one(), Plan), 0
            if row.indexed < row.letters:
                found.append(UnindexedPart(plan, row.part, row.letters, row.indexed, first))
            first += row.letters
        return found

    def add(self, part: UnindexedPart, line: int, rows: Sequence[DeadLetter]) -> None:
        """Add the rows of a file's next letters, which begin at row ``line``; those of a replay fail again."""

        def work(connection: sa.Connection) -> None:
            if part.plan.replay:
                fail_again(connection, self._id, part.plan.replay, rows)
            else:
                own = self._id, part.plan.step, part.plan.clock_ns
                insert_rows(connection, own, part.first + line, rows)
            mine = {"pipeline": self._id, "part": part.name}
            update(connection, dead_letter_parts, mine, {"indexed": line + len(rows)})

        self._run(work)

    def give_up(self, part: UnindexedPart, note: str, by: str) -> None:
        """Count the file's letters without rows as indexed: none of them will have one. The history has how many."""

        def work(connection: sa.Connection) -> None:
            update(connection, dead_letter_parts, {"pipeline": self._id, "part": part.name}, {"indexed": part.letters})
            record_event(connection, self._id, "discarded", letters=part.letters - part.indexed, note=note, by=by)

        self._run(work)

    def forget_closed(self) -> None:
        """Delete letters that were closed long ago, and the names of files without letters."""
        while self._run(lambda connection: forget_closed(connection, self._id)) == _AT_ONCE:
            pass


def forget_closed(connection: sa.Connection, pipeline: str) -> int:
    """Delete some of the letters that were closed long ago; return how many."""
    column = dead_letters.c
    mine = (column.pipeline == pipeline, column.closed_ns > 0)
    closed = sa.select(column.closed_ns).where(*mine).order_by(column.closed_ns.desc())
    cut = connection.execute(closed.offset(_KEPT_CLOSED).limit(1)).scalar()
    if cut is None:
        return 0
    oldest = sa.select(column.step, column.number, column.part).where(*mine, column.closed_ns < cut)
    gone = connection.execute(oldest.order_by(column.closed_ns).limit(_AT_ONCE)).all()
    for step, number, _ in gone:
        key = (column.pipeline == pipeline, column.step == step, column.number == number)
        connection.execute(sa.delete(dead_letters).where(*key))
    for part in sorted({part for *_, part in gone if part}):
        _forget_part(connection, pipeline, part)
    return len(gone)


def _forget_part(connection: sa.Connection, pipeline: str, part: str) -> None:
    column = dead_letter_parts.c
    left = sa.exists().where(dead_letters.c.pipeline == pipeline, dead_letters.c.part == part)
    over = (column.pipeline == pipeline, column.part == part, column.indexed == column.letters, ~left)
    connection.execute(sa.delete(dead_letter_parts).where(*over))
