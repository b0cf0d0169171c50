"""Replays of dead letters: selected some thousand per transaction, closed in the transaction that ends their step."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.dead_letters import DeadLetterQuery, Key, behind, conditions, pieces_of, up_to, update_some
from conduit_dagster.state.history import record_event
from conduit_dagster.state.lease import Transactions
from conduit_dagster.state.pipeline_state import REPLAY
from conduit_dagster.state.row_statements import insert
from conduit_dagster.state.steps import LetterPart, Plan
from conduit_dagster.state.tables import dead_letter_parts, dead_letters, sources

_AT_ONCE = 5_000
"""Maximum number of letters updated per transaction: other pipelines wait for it."""


class ChosenLetter(NamedTuple):
    """A letter selected for a replay."""

    step: int
    number: int
    part: str
    line: int
    node: str
    missed: str
    offset: int = 0


class LetterReplays:
    """The replays of one pipeline, for the owner of its lease. A letter is in at most one replay."""

    def __init__(self, transactions: Transactions, pipeline: str) -> None:
        self._transactions = transactions
        self._run = transactions.run
        self._id = pipeline

    def begin(self, replay: int, names: Mapping[str, str], unit: Mapping[str, Any], wanted: DeadLetterQuery) -> int:
        """Move the selected open letters into the replay; return their number. ``names``: source to its replay's name.

        Letters whose record is not in the archive, or whose source is not in ``names``, are left unchanged. If killed
        on the way, no step takes the letters moved so far, and :meth:`give_back` reopens them.
        """
        # its sources first: they are how a later owner knows that letters may have to be given back
        self._run(lambda connection: self._add_sources(connection, replay, names, unit))
        values = {"state": "replaying", "replay": replay}
        meant = sum(sum(self._updated([*where, _is_usable(names)], values)) for where in _selections(self._id, wanted))
        reached("mid-replay", self._id)
        if not meant:
            # a replay that is refused is none for the history
            self._run(lambda connection: drop_sources(connection, self._id))
            return 0
        detail = {"replay": replay, "letters": meant, **unit}
        self._run(lambda connection: record_event(connection, self._id, "replay_began", **detail))
        return meant

    def unusable(self, names: Collection[str], wanted: DeadLetterQuery) -> int:
        """Return the number of the selected open letters that :meth:`begin` leaves unchanged."""

        def work(connection: sa.Connection) -> int:
            counted = sa.select(sa.func.count()).select_from(dead_letters).where(sa.not_(_is_usable(names)))
            some = (counted.where(*where) for where in _selections(self._id, wanted))
            return sum(int(connection.execute(one).scalar_one()) for one in some)

        return self._transactions.read(work)

    def missed_by_others(self, destinations: Collection[str], wanted: DeadLetterQuery) -> int:
        """Return the number of the selected open letters that only destinations not among these have no copy of.

        A run or a replay closes them (:func:`~conduit_dagster.state.dead_letters.forget_missed`).
        """

        def work(connection: sa.Connection) -> int:
            column, found = dead_letters.c, Counter[str]()
            grouped = sa.select(column.missed, sa.func.count()).where(column.missed != "").group_by(column.missed)
            for where in _selections(self._id, wanted):
                for missed, letters in connection.execute(grouped.where(*where)):
                    found[missed] += letters
            return sum(letters for missed, letters in found.items() if _is_of_others(json.loads(missed), destinations))

        return self._transactions.read(work)

    def _add_sources(
        self, connection: sa.Connection, replay: int, names: Mapping[str, str], unit: Mapping[str, Any]
    ) -> None:
        for origin, name in names.items():
            values = {"pipeline": self._id, "source": name, "generation": replay, "position": "null"}
            text = json.dumps({"plugin": REPLAY, "origin": origin, **unit})
            counts = {"records": 0, "acked": 0, "filtered": 0, "nacked": 0}
            insert(connection, sources, [{**values, "unit": text, **counts}])

    def last(self) -> int:
        """Return the highest id of a replay in the index; 0 without replays."""
        highest = sa.select(sa.func.max(dead_letters.c.replay)).where(dead_letters.c.pipeline == self._id)
        return int(self._transactions.read(lambda connection: connection.execute(highest).scalar_one()) or 0)

    def end_of(self, replay: int, origin: str, start: Key | None, records: int) -> Key | None:
        """Return the last letter of a step of at most ``records`` letters after ``start``; None if none is left."""

        def work(connection: sa.Connection) -> Key | None:
            found = sa.select(dead_letters.c.step, dead_letters.c.number).where(*self._mine(replay, origin, start))
            limited = found.order_by(dead_letters.c.step, dead_letters.c.number).limit(records).subquery()
            backwards = sa.select(limited).order_by(limited.c.step.desc(), limited.c.number.desc()).limit(1)
            row = connection.execute(backwards).first()
            return None if row is None else (row[0], row[1])

        return self._transactions.read(work)

    def between(self, replay: int, origin: str, start: Key | None, end: Key) -> list[ChosenLetter]:
        """Return the letters of a step, in order; also of one that is prepared or done."""

        def work(connection: sa.Connection) -> list[ChosenLetter]:
            column = dead_letters.c
            mine = (*self._mine(replay, origin, start, None), up_to(end))
            found = sa.select(
                column.step, column.number, column.part, column.line, column.node, column.missed, column.offset
            )
            rows = connection.execute(found.where(*mine).order_by(column.step, column.number))
            return [ChosenLetter(*row) for row in rows]

        return self._transactions.read(work)

    def parts(self, names: Iterable[str]) -> dict[str, LetterPart]:
        """Return files of the archive by name, as recorded when they were written."""

        def work(connection: sa.Connection) -> dict[str, LetterPart]:
            column = dead_letter_parts.c
            found: dict[str, LetterPart] = {}
            for some in pieces_of(sorted(set(names))):
                mine = (column.pipeline == self._id, column.part.in_(some))
                for row in connection.execute(sa.select(dead_letter_parts).where(*mine)).mappings():
                    found[row["part"]] = LetterPart(row["part"], row["letters"], row["bytes"], row["sha256"])
            return found

        return self._transactions.read(work)

    def _mine(
        self, replay: int, origin: str, start: Key | None, state: str | None = "replaying"
    ) -> list[sa.ColumnElement[bool]]:
        column = dead_letters.c
        found = [column.pipeline == self._id, column.replay == replay, column.source == origin]
        found += [] if state is None else [column.state == state]
        return found if start is None else [*found, behind(start)]

    def give_back(self, kept: Plan | None = None) -> int:
        """Reopen letters that no step took; return their number. ``kept``: a replay's step, prepared and not done.

        Without such a step the replay ends, which the history then tells, whoever finished it.
        """
        mine = [dead_letters.c.pipeline == self._id, dead_letters.c.state == "replaying"]
        if kept is not None:
            taken = self._transactions.read(lambda connection: list(_taken(connection, self._id, kept)))
            mine += [sa.not_(one) for one in taken]
        back = sum(self._updated(mine, {"state": "open", "replay": 0}))
        if kept is None:
            self._run(self._end)
        return back

    def _end(self, connection: sa.Connection) -> None:
        mine = (sources.c.pipeline == self._id,)
        rows = connection.execute(sa.select(sources.c.generation, sources.c.unit).where(*mine)).all()
        units = ((generation, json.loads(unit)) for generation, unit in rows)
        for replay, by in {(number, unit.get("by", "")) for number, unit in units if unit.get("plugin") == REPLAY}:
            found = self._outcome(connection, replay)
            replayed, failed = (letters_in(found, state) for state in ("replayed", "open"))
            detail = {"replay": replay, "letters": replayed, "failed": failed, "by": by}
            record_event(connection, self._id, "replayed", **detail)
        drop_sources(connection, self._id)

    def held(self, step: Plan, wanted: DeadLetterQuery) -> int:
        """Return the number of the selected letters that are in a replay's step, prepared and not done."""

        def work(connection: sa.Connection) -> int:
            counted = sa.select(sa.func.count()).select_from(dead_letters)
            counted = counted.where(sa.or_(sa.false(), *_taken(connection, self._id, step)))
            some = [one._replace(states=("replaying",)) for one in wanted.pieces()]
            return sum(connection.execute(counted.where(*conditions(self._id, one))).scalar_one() for one in some)

        return self._transactions.read(work)

    def outcome(self, replay: int) -> list[dict[str, Any]]:
        """Return the number of a replay's letters by state, node and code, without reopened ones."""
        return self._transactions.read(lambda connection: self._outcome(connection, replay))

    def _outcome(self, connection: sa.Connection, replay: int) -> list[dict[str, Any]]:
        column = dead_letters.c
        by = (column.state, column.node, column.code)
        mine = (column.pipeline == self._id, column.replay == replay)
        found = sa.select(*by, sa.func.count().label("letters")).where(*mine).group_by(*by)
        return [dict(row) for row in connection.execute(found).mappings()]

    def discard(self, wanted: DeadLetterQuery, note: str, by: str) -> int:
        """Close open letters for good; return their number. Their records stay in queue and archive.

        The history gets one event per transaction, and so shows what was discarded before a kill.
        """
        values = {"state": "discarded", "note": note, "closed_ns": time.time_ns()}

        def tell(connection: sa.Connection, letters: int) -> None:
            record_event(connection, self._id, "discarded", letters=letters, note=note, by=by)

        return sum(sum(self._updated(where, values, tell)) for where in _selections(self._id, wanted))

    def _updated(
        self,
        where: Sequence[sa.ColumnElement[bool]],
        values: Mapping[str, Any],
        tell: Callable[..., None] | None = None,
    ) -> Iterator[int]:
        """Update the matching letters, which must not match afterwards; yield their number per transaction."""

        def work(connection: sa.Connection) -> int:
            letters = update_some(connection, where, values, _AT_ONCE)
            if letters and tell is not None:
                tell(connection, letters)
            return letters

        while letters := self._run(work):
            yield letters
            if letters < _AT_ONCE:
                return

    def kept_parts(self) -> set[str]:
        """Return the names of all files in the index. Raises ``LeaseLost`` if another owner may add to it."""
        mine = sa.select(dead_letter_parts.c.part).where(dead_letter_parts.c.pipeline == self._id)
        return set(self._run(lambda connection: list(connection.execute(mine).scalars())))


def _is_of_others(missed: Sequence[str], destinations: Collection[str]) -> bool:
    # marks, such as of a record that failed in pieces, begin with ~
    names = [name for name in missed if not name.startswith("~")]
    return bool(names) and not set(names) & set(destinations)


def letters_in(outcome: Iterable[Mapping[str, Any]], state: str) -> int:
    """Return the number of letters of this state in the outcome of a replay."""
    return sum(row["letters"] for row in outcome if row["state"] == state)


def _is_usable(names: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition for letters in the archive, from one of these sources."""
    return sa.and_(dead_letters.c.part != "", dead_letters.c.source.in_(list(names)))


def _selections(pipeline: str, wanted: DeadLetterQuery) -> Iterable[list[sa.ColumnElement[bool]]]:
    """Yield the WHERE conditions of each statement; only open letters."""
    return (conditions(pipeline, some._replace(states=("open",))) for some in wanted.pieces())


def _taken(connection: sa.Connection, pipeline: str, plan: Plan) -> Iterator[sa.ColumnElement[bool]]:
    """Yield a condition for each source of a replay's step: the letters of its range."""
    for span in plan.ranges:
        unit = sa.select(sources.c.unit).filter_by(pipeline=pipeline, source=span.source)
        origin = str(json.loads(connection.execute(unit).scalar_one())["origin"])
        start = [] if span.start is None else [behind(tuple(span.start))]
        yield sa.and_(dead_letters.c.source == origin, *start, up_to(tuple(span.end)))


def close_letters(connection: sa.Connection, pipeline: str, plan: Plan) -> None:
    """Close the letters that did not fail again, in the transaction that finishes a replay's step."""
    column, values = dead_letters.c, {"state": "replayed", "closed_ns": time.time_ns()}
    mine = [column.pipeline == pipeline, column.replay == plan.replay, column.state == "replaying"]
    for within in _taken(connection, pipeline, plan):
        connection.execute(sa.update(dead_letters).where(*mine, within).values(**values))


def drop_sources(connection: sa.Connection, pipeline: str) -> None:
    """Delete the sources of replays that are over."""
    found = connection.execute(sa.select(sources.c.source, sources.c.unit).where(sources.c.pipeline == pipeline))
    over = [name for name, unit in found if json.loads(unit).get("plugin") == REPLAY]
    if over:
        connection.execute(sa.delete(sources).where(sources.c.pipeline == pipeline, sources.c.source.in_(over)))
