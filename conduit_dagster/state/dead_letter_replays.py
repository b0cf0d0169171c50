"""Dead letters on their way once more: chosen by one transaction, closed by that of the step that sent them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.state.dead_letters import Key, Wanted, behind, conditions, pieces_of, up_to
from conduit_dagster.state.history import record_event
from conduit_dagster.state.lease import Transactions
from conduit_dagster.state.pipeline_state import REPLAY
from conduit_dagster.state.schema import dead_letter_parts, dead_letters, sources
from conduit_dagster.state.steps import LetterPart, Plan


class Chosen(NamedTuple):
    """A letter that is sent again."""

    step: int
    number: int
    part: str
    line: int
    node: str
    missed: str
    offset: int = 0


class LetterReplays:
    """The replays of one pipeline, for the owner of its lease. A letter is in at most one."""

    def __init__(self, transactions: Transactions, pipeline: str) -> None:
        self._transactions = transactions
        self._run = transactions.run
        self._id = pipeline

    def begin(self, replay: int, names: Mapping[str, str], unit: Mapping[str, Any], wanted: Wanted) -> int:
        """Takes the open letters that are meant; gives how many. ``names``: source to the name of its replay.

        Letters whose record is not in the archive, or whose source is not among ``names``, stay as they are.
        """

        def work(connection: sa.Connection) -> int:
            meant = _taken(connection, self._id, replay, list(names), wanted)
            for origin, name in names.items():
                values = {"pipeline": self._id, "source": name, "generation": replay, "position": "null"}
                text = json.dumps({"plugin": REPLAY, "origin": origin, **unit})
                counts = {"records": 0, "acked": 0, "filtered": 0, "nacked": 0}
                connection.execute(sources.insert().values(**values, unit=text, **counts))
            record_event(connection, self._id, "replay_began", replay=replay, letters=meant, **unit)
            return meant

        return self._run(work)

    def last(self) -> int:
        """The highest id of a replay that anything was sent by; 0 where there was none."""
        highest = sa.select(sa.func.max(dead_letters.c.replay)).where(dead_letters.c.pipeline == self._id)
        return int(self._transactions.read(lambda connection: connection.execute(highest).scalar_one()) or 0)

    def end_of(self, replay: int, origin: str, start: Key | None, records: int) -> Key | None:
        """The last letter of a step of so many behind ``start``; None where there is none left."""

        def work(connection: sa.Connection) -> Key | None:
            found = sa.select(dead_letters.c.step, dead_letters.c.number).where(*self._mine(replay, origin, start))
            limited = found.order_by(dead_letters.c.step, dead_letters.c.number).limit(records).subquery()
            backwards = sa.select(limited).order_by(limited.c.step.desc(), limited.c.number.desc()).limit(1)
            row = connection.execute(backwards).first()
            return None if row is None else (row[0], row[1])

        return self._transactions.read(work)

    def between(self, replay: int, origin: str, start: Key | None, end: Key) -> list[Chosen]:
        """The letters of a step, in order; also of one that is done or prepared."""

        def work(connection: sa.Connection) -> list[Chosen]:
            column = dead_letters.c
            mine = (*self._mine(replay, origin, start, None), up_to(end))
            found = sa.select(
                column.step, column.number, column.part, column.line, column.node, column.missed, column.offset
            )
            rows = connection.execute(found.where(*mine).order_by(column.step, column.number))
            return [Chosen(*row) for row in rows]

        return self._transactions.read(work)

    def parts(self, names: Iterable[str]) -> dict[str, LetterPart]:
        """Files of the archive, as they were written."""

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
        """Letters that no step has taken on are open again. ``kept``: a replay's step that is prepared and not done."""

        def work(connection: sa.Connection) -> int:
            mine = [dead_letters.c.pipeline == self._id, dead_letters.c.state == "replaying"]
            for span in kept.ranges if kept is not None else ():
                origin = _origin(connection, self._id, span.source)
                start = [] if span.start is None else [behind(tuple(span.start))]
                taken = [dead_letters.c.source == origin, *start, up_to(tuple(span.end))]
                mine.append(sa.not_(sa.and_(*taken)))
            back = connection.execute(sa.update(dead_letters).where(*mine).values(state="open", replay=0))
            if kept is None:
                drop_sources(connection, self._id)
            return back.rowcount

        return self._run(work)

    def outcome(self, replay: int) -> list[dict[str, Any]]:
        """What became of a replay's letters: how many by state, node and code. Those that were given back are none."""

        def work(connection: sa.Connection) -> list[dict[str, Any]]:
            column = dead_letters.c
            by = (column.state, column.node, column.code)
            mine = (column.pipeline == self._id, column.replay == replay)
            found = sa.select(*by, sa.func.count().label("letters")).where(*mine).group_by(*by)
            return [dict(row) for row in connection.execute(found).mappings()]

        return self._transactions.read(work)

    def ended(self, replay: int, **facts: Any) -> None:
        """All of its letters are closed or open again."""
        self._run(lambda connection: record_event(connection, self._id, "replayed", replay=replay, **facts))

    def discard(self, wanted: Wanted, note: str, by: str) -> int:
        """Closes open letters for good; gives how many. Their records stay in queue and archive."""

        def work(connection: sa.Connection) -> int:
            values = {"state": "discarded", "note": note, "closed_ns": time.time_ns()}
            count = 0
            for where in _selections(self._id, wanted):
                count += connection.execute(sa.update(dead_letters).where(*where).values(**values)).rowcount
            if count:
                record_event(connection, self._id, "discarded", letters=count, note=note, by=by)
            return count

        return self._run(work)

    def kept_parts(self) -> set[str]:
        """The names of all files that the index names. Raises ``LeaseLost`` where somebody else may add to it."""
        mine = sa.select(dead_letter_parts.c.part).where(dead_letter_parts.c.pipeline == self._id)
        return set(self._run(lambda connection: list(connection.execute(mine).scalars())))


def _taken(connection: sa.Connection, pipeline: str, replay: int, names: list[str], wanted: Wanted) -> int:
    usable = (dead_letters.c.part != "", dead_letters.c.source.in_(names))
    values = {"state": "replaying", "replay": replay}
    return sum(
        connection.execute(sa.update(dead_letters).where(*where, *usable).values(**values)).rowcount
        for where in _selections(pipeline, wanted)
    )


def _selections(pipeline: str, wanted: Wanted) -> Iterable[list[sa.ColumnElement[bool]]]:
    """What to say behind WHERE, statement by statement; only open letters."""
    return (conditions(pipeline, some._replace(states=("open",))) for some in wanted.pieces())


def _origin(connection: sa.Connection, pipeline: str, name: str) -> str:
    mine = (sources.c.pipeline == pipeline, sources.c.source == name)
    return str(json.loads(connection.execute(sa.select(sources.c.unit).where(*mine)).scalar_one())["origin"])


def close_letters(connection: sa.Connection, pipeline: str, plan: Plan) -> None:
    """Part of the transaction in which a replay's step is done: what did not fail again is closed."""
    for span in plan.ranges:
        column = dead_letters.c
        mine = [column.pipeline == pipeline, column.replay == plan.replay, column.state == "replaying"]
        start = [] if span.start is None else [behind(tuple(span.start))]
        within = (column.source == _origin(connection, pipeline, span.source), *start, up_to(tuple(span.end)))
        values = {"state": "replayed", "closed_ns": time.time_ns()}
        connection.execute(sa.update(dead_letters).where(*mine, *within).values(**values))


def drop_sources(connection: sa.Connection, pipeline: str) -> None:
    """The sources that stand for replays that are over."""
    found = connection.execute(sa.select(sources.c.source, sources.c.unit).where(sources.c.pipeline == pipeline))
    over = [name for name, unit in found if json.loads(unit).get("plugin") == REPLAY]
    if over:
        connection.execute(sa.delete(sources).where(sources.c.pipeline == pipeline, sources.c.source.in_(over)))
