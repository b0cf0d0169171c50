"""The index of dead letters: written within the protocol's transactions, read by filter and page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.database import reading
from conduit_dagster.state.row_statements import insert
from conduit_dagster.state.steps import EDIT_FAILED, DeadLetter, LetterPart
from conduit_dagster.state.tables import LONGEST, LONGEST_CODE, dead_letter_parts, dead_letters, words


class MissedCopy(NamedTuple):
    """A record whose copy also fails for another destination in the same step: it already has its letter."""

    source: str
    offset: int
    destinations: Sequence[str]
    """Destinations without a copy, as in ``DeadLetter.missed``."""


_OWN = ("pipeline", "step", "at_ns", "number")
_COLUMNS = (*_OWN, *(name for name in DeadLetter._fields if name != "again"))


def insert_rows(connection: sa.Connection, own: tuple[str, int, int], number: int, rows: Sequence[DeadLetter]) -> None:
    """Insert letters of a step, numbered from ``number``; ``own``: pipeline, step and time in nanoseconds."""
    # tuples bypass SQLAlchemy's processing of each value, which takes as long as the database itself
    quoted = map(connection.dialect.identifier_preparer.quote, _COLUMNS)
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    marks = ", ".join([mark] * len(_COLUMNS))
    text = f"INSERT INTO {dead_letters.name} ({', '.join(quoted)}) VALUES ({marks})"
    values = [(*own, number + i, *_held(row)[:-1]) for i, row in enumerate(rows)]
    if values:
        connection.exec_driver_sql(text, values)


def _held(row: DeadLetter) -> DeadLetter:
    # tuples bypass the column types as well, so apply them here
    return row._replace(
        position=words(row.position),
        code=words(row.code, LONGEST_CODE),
        message=words(row.message),
        namespace=words(row.namespace, LONGEST),
    )


def add_letters(connection: sa.Connection, pipeline: str, step: int, rows: Sequence[DeadLetter]) -> None:
    """Add letters found at publishing, after the others of their step."""
    if not rows:
        return
    mine = (dead_letters.c.pipeline == pipeline, dead_letters.c.step == step)
    last = connection.execute(sa.select(sa.func.max(dead_letters.c.number)).where(*mine)).scalar_one()
    insert_rows(connection, (pipeline, step, time.time_ns()), 0 if last is None else int(last) + 1, rows)


def add_missed(connection: sa.Connection, pipeline: str, step: int, missed: MissedCopy) -> None:
    """Add further destinations without a copy to the existing letter of a record."""
    mine = (dead_letters.c.pipeline == pipeline, dead_letters.c.step == step)
    at = (dead_letters.c.source == missed.source, dead_letters.c.offset == missed.offset)
    _merge_missed(connection, [*mine, *at], missed.destinations)


def fail_again(connection: sa.Connection, pipeline: str, replay: int, rows: Sequence[DeadLetter]) -> None:
    """Reopen letters that a replay could not deliver, with their new reason; the queue already has them.

    A letter that failed only because of the replay's own edit (``EDIT_FAILED``) keeps its reason and its attempts.
    """
    column = dead_letters.c
    for row in rows:
        assert row.again is not None
        mine = (column.pipeline == pipeline, column.step == row.again[0], column.number == row.again[1])
        values = {"state": "open", "closed_ns": 0, "missed": row.missed, "part": row.part, "line": row.line}
        if row.code != EDIT_FAILED:
            values |= {"node": row.node, "code": row.code, "message": row.message, "attempt": column.attempt + 1}
        # with at-most-once the step is done, and its letters closed, before this point
        still = (*mine, column.replay == replay, column.state.in_(("replaying", "replayed")))
        if not connection.execute(sa.update(dead_letters).where(*still).values(**values)).rowcount:
            # another destination has also refused it
            _merge_missed(connection, mine, json.loads(row.missed or "[]"))


def _merge_missed(connection: sa.Connection, mine: Sequence[sa.ColumnElement[bool]], more: Sequence[str]) -> None:
    known = connection.execute(sa.select(dead_letters.c.missed).where(*mine)).scalar_one_or_none()
    if known:
        names = dict.fromkeys([*json.loads(known), *more])
        connection.execute(sa.update(dead_letters).where(*mine).values(missed=json.dumps(list(names))))


def forget_missed(connection: sa.Connection, pipeline: str, gone: Sequence[str]) -> None:
    """Remove destinations that left the file from open letters; close letters that only they had missed.

    A restored destination counts as new: a replay must not send it records that it gets as a new one.
    """
    _strike(connection, pipeline, gone, "was removed from the pipeline's file", ())


def forget_missed_between(
    connection: sa.Connection, pipeline: str, destination: str, sources: Sequence[str], offsets: range
) -> None:
    """Remove a destination from the open letters of offsets that it is sent again; close those that only it missed.

    Otherwise a replay would send it those records a second time.
    """
    column = dead_letters.c
    within = (column.source.in_(sources), column.offset >= offsets.start, column.offset < offsets.stop)
    _strike(connection, pipeline, [destination], "is sent the record again from the log", within)


def _strike(
    connection: sa.Connection, pipeline: str, gone: Sequence[str], why: str, where: Sequence[sa.ColumnElement[bool]]
) -> None:
    column = dead_letters.c
    mine = (column.pipeline == pipeline, column.state.in_(OPEN), column.missed != "", *where)
    named = sa.or_(*(column.missed.contains(json.dumps(name), autoescape=True) for name in gone))
    # one statement for all letters that missed the same destinations: other pipelines wait for a million of them
    for missed in list(connection.execute(sa.select(column.missed).where(*mine, named).distinct()).scalars()):
        left = [name for name in json.loads(missed) if name not in gone]
        values: dict[str, object] = {"missed": json.dumps(left)}
        if not any(name for name in left if not name.startswith("~")):
            note = f"{', '.join(sorted(set(gone) & set(json.loads(missed))))} {why}"
            values = {"state": "discarded", "note": note, "closed_ns": time.time_ns()}
        connection.execute(sa.update(dead_letters).where(*mine, column.missed == missed).values(**values))


def insert_parts(
    connection: sa.Connection, pipeline: str, step: int, parts: Sequence[LetterPart], are_indexed: bool = False
) -> None:
    """Add files of the archive to the index; ``are_indexed``: the same transaction adds the rows of their letters."""
    values = [
        {
            "pipeline": pipeline, "step": step, "part": part.name, "letters": part.letters, "bytes": part.bytes,
            "sha256": part.sha256, "indexed": part.letters if are_indexed else 0,
        }
        for part in parts
    ]  # fmt: skip
    insert(connection, dead_letter_parts, values)


Key = tuple[int, int]
"""A letter's step and number: the order in which a pipeline's letters were found."""
OPEN = ("open", "replaying")
STATES = ("open", "replaying", "replayed", "discarded")
_PAGE = 20_000
_MANY = 400
_KEY = sa.tuple_(dead_letters.c.step, dead_letters.c.number)


def pieces_of(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the values in chunks, each small enough for one statement."""
    return (values[first : first + _MANY] for first in range(0, len(values), _MANY))


def letter_id(row: Any) -> str:
    """Return a letter's id as shown to users: ``PIPELINE/STEP.NUMBER``."""
    return f"{row['pipeline']}/{row['step']}.{row['number']}"


class DeadLetterQuery(NamedTuple):
    """Filter for a pipeline's letters; None matches everything."""

    states: Sequence[str] = OPEN
    node: str | None = None
    code: str | None = None
    source: str | None = None
    namespace: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    part: str | None = None
    """A file of the archive."""
    keys: Sequence[Key] | None = None

    def pieces(self) -> Iterator[DeadLetterQuery]:
        """Yield queries that together select the same letters, each with few enough keys for one statement."""
        if self.keys is None:
            yield self
            return
        yield from (self._replace(keys=some) for some in pieces_of(self.keys))


def conditions(pipeline: str, wanted: DeadLetterQuery) -> list[sa.ColumnElement[bool]]:
    """Return the WHERE conditions of a query."""
    column = dead_letters.c
    found = [column.pipeline == pipeline, column.state.in_(wanted.states)]
    for name in ("node", "code", "source", "namespace", "part"):
        if (value := getattr(wanted, name)) is not None:
            found.append(column[name] == words(value))  # bytes that are no text: the databases would fail
    if wanted.since_ns is not None:
        found.append(column.at_ns >= wanted.since_ns)
    if wanted.until_ns is not None:
        found.append(column.at_ns < wanted.until_ns)
    if wanted.keys is not None:
        found.append(_KEY.in_(wanted.keys))
    return found


def update_some(
    connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]], values: Mapping[str, Any], most: int
) -> int:
    """Update at most ``most`` matching letters, the first ones; return their number."""
    column = dead_letters.c
    ordered = sa.select(column.step, column.number).where(*where).order_by(column.step, column.number)
    last = connection.execute(ordered.offset(most - 1).limit(1)).first()
    # a range of keys: PostgreSQL takes quadratic time for a list of them in a subquery
    end = [] if last is None else [up_to((last[0], last[1]))]
    return connection.execute(sa.update(dead_letters).where(*where, *end).values(**values)).rowcount


def behind(key: Key) -> sa.ColumnElement[bool]:
    """Return the condition for letters found after this one."""
    return sa.tuple_(*key) < _KEY


def up_to(key: Key) -> sa.ColumnElement[bool]:
    """Return the condition for this letter and those before it."""
    return sa.tuple_(*key) >= _KEY


def open_counts(engine: sa.Engine) -> dict[str, int]:
    """Return the number of open letters of every pipeline that has any."""
    column = dead_letters.c
    counted = sa.select(column.pipeline, sa.func.count()).where(column.state.in_(OPEN)).group_by(column.pipeline)
    with reading(engine) as connection:
        return {row[0]: row[1] for row in connection.execute(counted)}


def open_from(engine: sa.Engine, pipeline: str, names: Sequence[str], offset: int = 0) -> int:
    """Return the number of open letters of these sources from an offset on."""
    column = dead_letters.c
    mine = (*conditions(pipeline, DeadLetterQuery(OPEN)), column.source.in_(names), column.offset >= offset)
    with reading(engine) as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(dead_letters).where(*mine)).scalar_one()


def reasons(engine: sa.Engine, pipeline: str, wanted: DeadLetterQuery) -> list[dict[str, Any]]:
    """Return the number of letters by state, node and code, the most frequent first."""
    column, many = dead_letters.c, sa.func.count().label("letters")
    grouped = sa.select(column.state, column.node, column.code, many).where(*conditions(pipeline, wanted))
    ordered = grouped.group_by(column.state, column.node, column.code).order_by(many.desc(), column.node, column.code)
    with reading(engine) as connection:
        return [dict(row) for row in connection.execute(ordered).mappings()]


def newest(engine: sa.Engine, pipeline: str, wanted: DeadLetterQuery, limit: int) -> list[dict[str, Any]]:
    """Return the newest letters, newest first."""
    return [dict(row) for row in next(pages(engine, pipeline, wanted, newest_first=True, size=limit), [])]


def pages(
    engine: sa.Engine,
    pipeline: str,
    wanted: DeadLetterQuery,
    *,
    newest_first: bool = False,
    columns: Sequence[str] = (),
    size: int = _PAGE,
) -> Iterator[Sequence[sa.RowMapping]]:
    """Yield pages of letters in order, or newest first, one read transaction per page. Empty ``columns``: all.

    Raises ``FatalError`` (``dead_letters.deleted``) if letters in order are deleted between two pages.
    """
    column, where = dead_letters.c, conditions(pipeline, wanted)
    order = (column.step.desc(), column.number.desc()) if newest_first else (column.step, column.number)
    last: Key | None = None
    while True:
        beyond = [] if last is None else [sa.tuple_(*last) > _KEY if newest_first else behind(last)]
        page = (
            sa.select(*([column[name] for name in columns] or [dead_letters]))
            .where(*where, *beyond)
            .order_by(*order)
            .limit(size)
        )
        with reading(engine) as connection:
            rows = connection.execute(page).mappings().all()
            # deleted in order: as long as this one is there, so are those behind it
            is_whole = last is None or _is_there(connection, pipeline, last)
        if not is_whole:
            raise _deleted(pipeline)
        if rows:
            yield rows
        if len(rows) < size:
            return
        last = rows[-1]["step"], rows[-1]["number"]


def _is_there(connection: sa.Connection, pipeline: str, key: Key) -> bool:
    mine = {"pipeline": pipeline, "step": key[0], "number": key[1]}
    return connection.execute(sa.select(dead_letters.c.step).filter_by(**mine)).first() is not None


def _deleted(pipeline: str) -> FatalError:
    return FatalError(
        f"dead letters of pipeline {pipeline} were deleted while they were read: what was read is not all",
        code="dead_letters.deleted",
        fix=f"repeat the command if conduit-dagster dlq list {pipeline} --state all shows any",
    )
