"""A project whose pipeline runs in this process, and the operator's commands in it."""

from __future__ import annotations

import json
import shutil
from typing import Any

import sqlalchemy as sa

from conduit_dagster.engine.report import RunResult
from conduit_dagster.state import tables
from conduit_dagster.state.overview import offset_rows
from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, destination, processor, queue, source

from .stored_events import newest_events

RECORDS = {"log": "records"}
NAMESPACE = processor("namespace", "field.set", field='.Metadata["opencdc.collection"]', expression="after.c")


def build(lab: Lab, count: int, *outputs: Any, **more: Any) -> None:
    """Create a pipeline of ``count`` lines; with scripted destinations by default."""
    lab.write("in.jsonl", [{"i": i, "c": "AABBAABBCACBAACB"[i % 16]} for i in range(count)])
    more.setdefault("processors", [DECODE])
    lab.pipeline(connectors=[source(), *(outputs or [scripted()])], **{"dead-letter-queue": queue(), **more})


def logged(lab: Lab, count: int, **more: Any) -> None:
    """Create a pipeline with a log whose namespaces are logged with the entries."""
    build(lab, count, destination(), delivery={**RECORDS, **more}, processors=[DECODE])


def fresh(lab: Lab, **delivery: Any) -> None:
    """Empty a logged pipeline's project, except for the exported file."""
    for path in (".conduit", "out.jsonl", "dead.jsonl"):
        target = lab.root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    lab.write("in.jsonl", [])
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], delivery={**RECORDS, **delivery})


def append(lab: Lab, first: int, end: int) -> None:
    """Append more lines of the same kind."""
    lab.write("in.jsonl", [{"i": i, "c": "AABBAABBCACBAACB"[i % 16]} for i in range(first, end)], mode="a")


def code_of(result: RunResult) -> str:
    """Return the code of the transient error that ended a run."""
    assert result.error is not None
    assert not result.error.fatal
    return result.error.code


def after_bulk_error(lab: Lab, script: Script, **more: Any) -> None:
    """Produce a bulk error: 0 to 8 are acked, the bulk write of 9 to 15 fails without naming a record.

    The records are then sent one at a time, unless the test's ``delivery`` differs.
    """
    more["delivery"] = {"redelivery": "one-at-a-time", **more.get("delivery", {})}
    build(lab, 9, **more)
    assert lab.run().error is None
    append(lab, 9, 16)
    script.says(bulk=[14])
    script.sent()
    assert code_of(lab.run()) == "delivery.bulk_failed"
    assert script.sent() == [list(range(9, 16))]
    assert offsets(lab)["out"] == 8


def fails_at_14(lab: Lab, script: Script, **more: Any) -> None:
    """Send 9 to 13 one by one; 14 keeps failing."""
    after_bulk_error(lab, script, **more)
    assert code_of(lab.run()) == "delivery.record_failed"
    script.sent()
    assert offsets(lab)["out"] == 13


def offsets(lab: Lab, namespace: str = "*") -> dict[str, int]:
    """Return each consumer's offset."""
    with lab.store() as database:
        return {row["consumer"]: row["offset"] for row in offset_rows(database, "p") if row["namespace"] == namespace}


def events(lab: Lab, name: str) -> list[dict[str, Any]]:
    """Return details of the events of one kind, the newest first."""
    with lab.store() as database:
        return [row["detail"] for row in newest_events(database, "p", 100) if row["event"] == name]


def snapshot(lab: Lab) -> list[Any]:
    """Return all rows that an operation may change."""
    every = (tables.sources, tables.steps, tables.deliveries, tables.offsets, tables.consumers, tables.logs)
    with lab.store() as database, database.connect() as connection:
        found = [sorted(map(tuple, connection.execute(sa.select(table))), key=repr) for table in every]
    return json.loads(json.dumps(found, default=str))


def result(ran: Any) -> Any:
    """Return the ``--json`` result of a command that succeeded."""
    assert ran.code == 0, ran.out
    return ran.envelope["result"]


def error(ran: Any) -> Any:
    """Return the error of a command that failed; it must have a fix."""
    assert ran.code != 0, ran.out
    found = ran.envelope["error"]
    assert found["fix"]
    return found
