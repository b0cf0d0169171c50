"""Lines staged for a table that did not exist yet, and that was then created without some of their columns.

Lines of one block have the columns of all its records: those that hold nothing are left out, so that a record is
refused only for a field of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.postgres.catalog import Table
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.staged_rows import LineGroup
from conduit_dagster.connectors.postgres.table_plan import Slice
from conduit_dagster.record import Nack
from conduit_dagster.sdk import NACKED_TOGETHER, Refusal, Rejected

Placed = tuple[LineGroup, Slice]
_NULL = rb"\N"


def narrowed_lines(
    slices: Sequence[Placed], tables: Mapping[TableName, Table | None], url: str, ignores: bool
) -> list[Placed]:
    """Return the lines without the columns that their tables lack; changed lines are written to a new file at ``url``.

    Raises ``Rejected`` for records with values for such columns, unless ``ignores`` (``unmapped: ignore``).
    """
    lacks = {group: _lacks(group, tables.get(group.table)) for group, _ in slices}
    if not any(lacks.values()):
        return list(slices)
    file = storage.NewFile(url)
    found, refused, offset = list[Placed](), list[Refusal](), 0
    for group, one in slices:
        if not lacks[group]:
            found.append((group, one))
            continue
        narrower, size = _Narrower(group, lacks[group], ignores), 0
        for place, line in enumerate(_lines(one), one.place):
            if (made := narrower.line(line)) is None:
                refused.append(Refusal(place, narrower.nack))
            else:
                file.write(made)
                size += len(made)
        found.append((narrower.group, Slice(url, offset, size, one.records, one.place)))
        offset += size
    file.finish()
    if refused:
        raise Rejected(*refused[0], more=refused[1:NACKED_TOGETHER])
    return found


def _lacks(group: LineGroup, table: Table | None) -> frozenset[str]:
    return frozenset() if table is None else frozenset(group.columns) - table.columns.keys()


def _lines(one: Slice) -> Iterator[bytes]:
    with storage.open_read(one.url) as file:
        file.seek(one.offset)
        for _ in range(one.records):
            yield file.readline()


class _Narrower:
    """Lines of one group, without some of its columns."""

    def __init__(self, group: LineGroup, lacks: frozenset[str], ignores: bool) -> None:
        self._first = 1 if group.merge else 0
        self._end = self._first + len(group.columns)
        self._kept = [place for place, name in enumerate(group.columns) if name not in lacks]
        self._gone = [self._first + place for place, name in enumerate(group.columns) if name in lacks]
        self._ignores = ignores
        self._is_possible = bool(self._kept) and not lacks.intersection(group.key)
        self.group = msgspec.structs.replace(group, columns=tuple(group.columns[place] for place in self._kept))
        names = ", ".join(name for name in group.columns if name in lacks)
        self.nack = Nack("postgres.unmapped", f"the table {group.table} has no column for one of {names}")

    def line(self, line: bytes) -> bytes | None:
        """Return the line without the columns; None if it has values for them."""
        cells = line[:-1].split(b"\t")
        has_values = not self._ignores and any(cells[place] != _NULL for place in self._gone)
        if has_values or not self._is_possible:
            return None
        kept = [cells[self._first + place] for place in self._kept]
        return b"\t".join([*map(self._mark, cells[: self._first]), *kept, *cells[self._end :]]) + b"\n"

    def _mark(self, cell: bytes) -> bytes:
        """Return the mark of a change with the bits of the columns that are left."""
        bits = int(cell[1:], 16)
        return cell[:1] + b"%x" % sum(1 << bit for bit, place in enumerate(self._kept) if bits >> place & 1)
