"""Letters by what the index says of them, and by an expression over the failed record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.engine.dead_letters.archive import Archive, Letter, record_of
from conduit_dagster.expressions import Clock, ExpressionError, compile_condition
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.letter_view import Key, Wanted, pages


class Found(NamedTuple):
    """A letter with its row of the index."""

    row: dict[str, Any]
    letter: Letter | None
    """None where the record is not in the archive: a letter of an early version."""

    @property
    def key(self) -> Key:
        """Its step and number."""
        return self.row["step"], self.row["number"]

    def failed(self) -> Record | None:
        """The record as it was when it was nacked."""
        return None if self.letter is None else record_of(self.letter.failed, self.row["part"])

    def original(self) -> Record | None:
        """The record as its source gave it; None where it is not kept."""
        if self.letter is None or not self.letter.original:
            return None
        return record_of(self.letter.original, self.row["part"])


class Letters:
    """The letters of one pipeline, for anybody who may read the store and the archive."""

    def __init__(self, store: sa.Engine, archive: Archive, pipeline: str) -> None:
        self._store, self._archive, self._id = store, archive, pipeline

    def search(self, wanted: Wanted, where: str = "", newest_first: bool = False) -> Iterator[Found]:
        """Letters one by one. Raises ``FatalError`` (``expression.invalid``, ``dead_letters.damaged``).

        A record for which ``where`` raises does not match.
        """
        matches = condition(where) if where else None
        for page in pages(self._store, self._id, wanted, newest_first=newest_first):
            for found in self.with_records(page):
                if matches is None or ((record := found.failed()) is not None and matches(record)):
                    yield found

    def with_records(self, rows: list[dict[str, Any]]) -> Iterator[Found]:
        """The letters behind rows of the index; consecutive ones of a file are read together."""
        for part, group in groupby(rows, lambda row: row["part"]):
            mine = list(group)
            if not part:
                yield from (Found(row, None) for row in mine)
                continue
            lines = sorted(row["line"] for row in mine)
            letters = dict(zip(lines, self._archive.letters(part, lines), strict=True))
            yield from (Found(row, letters[row["line"]]) for row in mine)

    def keys(self, wanted: Wanted, where: str) -> list[Key]:
        """The letters that match, in order."""
        return [found.key for found in self.search(wanted, where)]


def counted(found: Iterable[Found], limit: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """How many there are by state, node and code, the most frequent first; and the first few rows."""
    counts: dict[tuple[str, str, str], int] = {}
    rows: list[dict[str, Any]] = []
    for one in found:
        reason = one.row["state"], one.row["node"], one.row["code"]
        counts[reason] = counts.get(reason, 0) + 1
        if len(rows) < limit:
            rows.append(one.row)
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [{"state": s, "node": n, "code": c, "letters": many} for (s, n, c), many in ordered], rows


def condition(text: str) -> Callable[[Record], bool]:
    """The expression over a record. Raises ``FatalError`` (``expression.invalid``)."""
    try:
        compiled = compile_condition(text, Clock())
    except ExpressionError as error:
        fix = error.fix or "an expression over the failed record, as in a processor's condition: after.amount > 100"
        raise FatalError(error.message, code="usage.expression", place=f"--where {text!r}", fix=fix) from None

    def matches(record: Record) -> bool:
        try:
            return bool(compiled(record))
        except Exception:  # noqa: BLE001  # whatever a record holds: it does not match
            return False

    return matches
