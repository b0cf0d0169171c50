"""One staged row as a record again, for the dead letter of a row that the table refuses."""

from __future__ import annotations

import re

from conduit_dagster.connectors.postgres.rows import Group, read_index
from conduit_dagster.record import Operation, Record
from conduit_dagster.sdk import Delivery
from conduit_dagster.state import storage
from conduit_dagster.state.steps import Part

_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OPERATIONS: dict[str, Operation] = {"c": "create", "u": "update", "d": "delete"}


def staged_row(delivery: Delivery, place: int) -> Record:
    """The row at a place of the delivery: its columns by name, each as the text that PostgreSQL would be given.

    Raises ``LookupError`` where the delivery has no such row, ``FatalError`` (``postgres.staging``) for a damaged part.
    """
    for part in delivery.parts:
        if place < part.records:
            return _row(delivery, part, place)
        place -= part.records
    raise LookupError("the delivery ends before that row")


def _row(delivery: Delivery, part: Part, place: int) -> Record:
    index, left = read_index(delivery, part), place
    with storage.open_read(storage.join(delivery.staging, part.name)) as file:
        for run in index.runs:
            if left < run.records:
                lines = file.read(run.bytes).split(b"\n", left + 1)
                return _record(index.groups[run.group], lines[left].decode())
            left -= run.records
            file.seek(run.bytes, 1)
    raise LookupError(f"row {place} of {part.name}")


def _record(group: Group, line: str) -> Record:
    cells = line.split("\t")
    if not group.merge:
        return Record(0, {}, _values(group.columns, cells))
    operation, held = cells[0][0], int(cells[0][1:], 16)
    every = _values(group.columns, cells[1:])
    values = {name: value for bit, (name, value) in enumerate(every.items()) if held >> bit & 1}
    key = {name: values[name] for name in group.key}
    after = None if operation == "d" else values
    return Record(0, {}, after, key, None, _OPERATIONS[operation])


def _values(columns: tuple[str, ...], cells: list[str]) -> dict[str, str | None]:
    return {name: None if cell == r"\N" else _unescaped(cell) for name, cell in zip(columns, cells, strict=True)}


def _unescaped(cell: str) -> str:
    return _ESCAPED.sub(_character, cell) if "\\" in cell else cell


def _character(found: re.Match[str]) -> str:
    escape = found[1]
    return chr(int(escape[1:], 16)) if escape[0] == "x" and len(escape) == 3 else _NAMED.get(escape, escape)
