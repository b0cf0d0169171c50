"""Reads the index of dead letters: filters, counts, pages. Records are not here but in the archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.state.database import reading
from conduit_dagster.state.schema import dead_letters

Key = tuple[int, int]
"""A letter's step and number: they order the letters of a pipeline as they were found."""
OPEN = ("open", "replaying")
STATES = ("open", "replaying", "replayed", "discarded")
_PAGE = 20_000
_MANY = 400
_KEY = sa.tuple_(dead_letters.c.step, dead_letters.c.number)


def pieces_of(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Few enough each for one statement."""
    return (values[first : first + _MANY] for first in range(0, len(values), _MANY))


def letter_id(row: Any) -> str:
    """How people call a letter: ``PIPELINE/STEP.NUMBER``."""
    return f"{row['pipeline']}/{row['step']}.{row['number']}"


class Wanted(NamedTuple):
    """Which letters of a pipeline; what is None does not matter."""

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

    def pieces(self) -> Iterator[Wanted]:
        """The same letters, with few enough keys each for one statement."""
        if self.keys is None:
            yield self
            return
        yield from (self._replace(keys=some) for some in pieces_of(self.keys))


def conditions(pipeline: str, wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    """As they stand behind WHERE."""
    column = dead_letters.c
    found = [column.pipeline == pipeline, column.state.in_(wanted.states)]
    for name in ("node", "code", "source", "namespace", "part"):
        if (value := getattr(wanted, name)) is not None:
            found.append(column[name] == value)
    if wanted.since_ns is not None:
        found.append(column.at_ns >= wanted.since_ns)
    if wanted.until_ns is not None:
        found.append(column.at_ns < wanted.until_ns)
    if wanted.keys is not None:
        found.append(_KEY.in_(wanted.keys))
    return found


def behind(key: Key) -> sa.ColumnElement[bool]:
    """Letters that were found after this one."""
    return sa.tuple_(*key) < _KEY


def up_to(key: Key) -> sa.ColumnElement[bool]:
    """This letter and those before it."""
    return sa.tuple_(*key) >= _KEY


def reasons(engine: sa.Engine, pipeline: str, wanted: Wanted) -> list[dict[str, Any]]:
    """How many letters there are by state, node and code; the most frequent first."""
    column, many = dead_letters.c, sa.func.count().label("letters")
    grouped = sa.select(column.state, column.node, column.code, many).where(*conditions(pipeline, wanted))
    ordered = grouped.group_by(column.state, column.node, column.code).order_by(many.desc(), column.node, column.code)
    with reading(engine) as connection:
        return [dict(row) for row in connection.execute(ordered).mappings()]


def newest(engine: sa.Engine, pipeline: str, wanted: Wanted, limit: int) -> list[dict[str, Any]]:
    """The newest letters, the newest first."""
    return [dict(row) for row in next(pages(engine, pipeline, wanted, newest_first=True, size=limit), [])]


def pages(
    engine: sa.Engine,
    pipeline: str,
    wanted: Wanted,
    *,
    newest_first: bool = False,
    columns: Sequence[str] = (),
    size: int = _PAGE,
) -> Iterator[Sequence[sa.RowMapping]]:
    """All of them in their order, or back from the newest, a page per read transaction; all columns unless some."""
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
        if rows:
            yield rows
        if len(rows) < size:
            return
        last = rows[-1]["step"], rows[-1]["number"]
