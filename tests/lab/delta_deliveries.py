"""A delta destination and staged deliveries for tests, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from conduit_dagster.connectors.delta.destination import DeltaDestination, DeltaDestinationSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorContext, Delivery, WriterTask


def make(root: Path, connector: str = "out", **settings: str) -> DeltaDestination:
    """Return a destination that writes to ``ROOT/table`` by default; names of settings with underscores."""
    values = {"path": "table", **{key.replace("_", "-"): value for key, value in settings.items()}}
    context = ConnectorContext("p", connector, str(root), Clock(), "exactly-once")
    return DeltaDestination(DeltaDestinationSettings.model_validate(values), context)


def records(*documents: Any) -> list[Record]:
    """Return created records of these documents."""
    return [Record(i, {}, document) for i, document in enumerate(documents)]


def numbers(*values: int) -> list[dict[str, int]]:
    """Return documents of one number each."""
    return [{"i": value} for value in values]


def stage(destination: DeltaDestination, step: int, tasks: Sequence[Sequence[Any]], token: str = "t") -> Delivery:
    """Return a prepared delivery of documents, one part per task."""
    staging = destination.staging("") + f"/{step:012d}-{token}/out"
    parts = []
    for index, documents in enumerate(tasks):
        writer = destination.writer(WriterTask(staging, index, f"{token}{index}"))
        assert list(writer.write(records(*documents))) == []
        part = writer.finish()
        assert part is not None
        parts.append(part)
    target = destination.target(None)
    return Delivery(f"{step:02x}" * 32, step, destination.context.connector, staging, tuple(parts), target)


def refusals(destination: DeltaDestination, *given: Any) -> dict[int, tuple[str, str]]:
    """Return code and message of refused records by place; the part has all the others."""
    writer = destination.writer(WriterTask(destination.staging("") + "/refused", 0, "r"))
    rows = [value if isinstance(value, Record) else Record(0, {}, value) for value in given]
    found = {refusal.place: (refusal.nack.code, refusal.nack.message) for refusal in writer.write(rows)}
    part = writer.finish()
    assert (part.records if part else 0) == len(given) - len(found)
    return found


def rows(root: Path) -> list[dict[str, Any]]:
    """Return the table's rows, in the order of its files' names."""
    table = DeltaTable(root / "table")
    files = sorted(table.file_uris())
    return [row for file in files for row in pq.read_table(file.removeprefix("file://")).to_pylist()]


def ids(root: Path) -> list[int]:
    """Return the numbers in it."""
    return [row["i"] for row in rows(root)]
