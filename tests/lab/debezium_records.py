"""Debezium's change events beside our records: common content, and intended differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from conduit_dagster.connectors.postgres.source_position import parse_lsn
from conduit_dagster.record import CREATED_AT, Record
from lab.debezium import Event
from lab.debezium_values import Schema, UnlikeError, compared, is_unavailable

_OPERATIONS = {"r": "snapshot", "c": "create", "u": "update", "d": "delete", "t": "delete"}
Row = dict[str, Any]
SendsRows = Callable[[str, int], bool]
"""Return whether a transaction's changes of a table contain whole rows as they were before."""


class TheirChange(NamedTuple):
    """A change from Debezium, already combined into one record."""

    operation: str
    table: str
    key: Row | None
    before: Row | None
    after: Row | None
    source: dict[str, Any]
    fields: dict[str, Schema]
    """Schemas of the columns."""
    is_truncate: bool
    events: int
    """Number of events it was made from."""


def changes(events: Iterable[Event]) -> Iterator[TheirChange]:
    """Yield one change for each record that our source should emit."""
    held: Event | None = None
    for event in events:
        if held is not None and is_same_update(held, event):
            yield moved(held, event)
            held = None
            continue
        if held is not None:
            yield _change(held)
        held = event
    if held is not None:
        yield _change(held)


def is_same_update(first: Event, second: Event) -> bool:
    """Return whether two events form one update.

    Debezium emits a key change as a delete and a create, both at one place in the WAL, joined by headers.
    """
    one, other = first.payload, second.payload
    place = [[event["source"][name] for name in ("lsn", "txId", "table")] for event in (one, other)]
    return (one["op"], other["op"]) == ("d", "c") and place[0] == place[1]


def moved(deleted: Event, created: Event) -> TheirChange:
    """Return one update, as in SQL: a destination can then move the row, and needs no tombstones."""
    change = _change(created)
    return change._replace(operation="update", before=deleted.payload["before"], events=2)


def _change(event: Event) -> TheirChange:
    payload = event.payload
    return TheirChange(
        _OPERATIONS[payload["op"]],
        event.table,
        None if event.key is None else event.key["payload"],
        payload["before"],
        payload["after"],
        payload["source"],
        _fields(event),
        payload["op"] == "t",
        1,
    )


def _fields(event: Event) -> dict[str, Schema]:
    rows = next(field for field in event.value["schema"]["fields"] if field["field"] == "after")
    return {field["field"]: field for field in rows["fields"]}


def only_the_key(row: Row, key: Iterable[str]) -> Row:
    """Return only the old key: the server sends no more without ``REPLICA IDENTITY FULL``, nor do we.

    Debezium fills the other columns with null, and those that can't be null with 0, '' or their default.
    """
    return {name: row[name] for name in key}


def without_untouched(row: Row) -> tuple[Row, list[str]]:
    """Return the row without unsent large values, and their names. Debezium has placeholders; ours leaves them out."""
    left_out = [name for name, value in row.items() if is_unavailable(value)]
    return {name: value for name, value in row.items() if name not in left_out}, left_out


def differences(theirs: TheirChange, ours: Record, sends_rows: SendsRows) -> list[str]:
    """Return the differences as text; empty if both describe the same change."""
    found: list[str] = []
    if (theirs.operation, theirs.table.removeprefix("public.")) != (ours.operation, ours.collection):
        found.append(f"{theirs.operation} {theirs.table}, not {ours.operation} {ours.collection}")
    if theirs.is_truncate != (ours.metadata.get("postgres.truncate") == "true"):
        found.append("truncate")
    after, left_out = (None, []) if theirs.after is None else without_untouched(theirs.after)
    if ",".join(left_out) != ours.metadata.get("postgres.unchanged_toast", ""):
        found.append(f"untouched: {left_out}, not {ours.metadata.get('postgres.unchanged_toast')}")
    before = theirs.before
    if before is not None and not sends_rows(theirs.table, theirs.source["txId"]):
        before = only_the_key(before, theirs.key or {})
    pairs = {"key": (theirs.key, ours.key), "before": (before, ours.before), "after": (after, ours.after)}
    for what, (their, our) in pairs.items():
        found += [f"{what}: {text}" for text in _unlike(theirs.fields, their, our)]
    return found if theirs.operation == "snapshot" else found + _unlike_places(theirs, ours)


def _unlike(fields: dict[str, Schema], theirs: Row | None, ours: Any) -> Iterator[str]:
    if theirs is None or ours is None or list(theirs) != list(ours):
        if theirs != ours:
            yield f"{theirs}, not {ours}"
        return
    for name, value in theirs.items():
        try:
            their, our = compared(fields[name], value, ours[name])
        except UnlikeError:
            continue
        if their != our or type(their) is not type(our):
            yield f"{name}: {value!r} ({their!r}), not {ours[name]!r} ({our!r})"


def _unlike_places(theirs: TheirChange, ours: Record) -> list[str]:
    """Compare transaction and commit time, which must be equal. Debezium's LSN is the change's; ours the commit's."""
    found: list[str] = []
    if str(theirs.source["txId"]) != ours.metadata["postgres.xid"]:
        found.append(f"xid {theirs.source['txId']}, not {ours.metadata['postgres.xid']}")
    if theirs.source["ts_us"] * 1_000 != int(ours.metadata[CREATED_AT]):
        found.append(f"committed {theirs.source['ts_us']}, not {ours.metadata[CREATED_AT]}")
    if not theirs.source["lsn"] < parse_lsn(ours.metadata["postgres.lsn"]):
        found.append(f"LSN {theirs.source['lsn']} is not before {ours.metadata['postgres.lsn']}")
    return found


def compare(theirs: Sequence[TheirChange], ours: Sequence[Record], sends_rows: SendsRows) -> list[str]:
    """Return all differences, by place."""
    found = [
        f"{place} {their.operation} {their.table} {their.key}: {text}"
        for place, (their, our) in enumerate(zip(theirs, ours, strict=False))
        for text in differences(their, our, sends_rows)
    ]
    return found if len(theirs) == len(ours) else [*found, f"{len(theirs)} changes, not {len(ours)}"]
