"""``redact``: values of some fields never reach logs, lists, assets or error texts; stored data keep them."""

from __future__ import annotations

import json
import shutil
import traceback
from typing import Any

import pytest
import sqlalchemy as sa
from lab.kills import crashing
from lab.support import DECODE, Lab, destination, processor, queue, source
from structlog.testing import capture_logs

from conduit_dagster.engine.redaction import MASK, Redaction
from conduit_dagster.engine.stage_job import NackRow
from conduit_dagster.record import Nack, Record
from conduit_dagster.state.database import reading
from conduit_dagster.state.dead_letters import DeadLetterQuery, newest
from conduit_dagster.state.tables import history

SECRET = "987-65-4321"
FIELD = ".Payload.After.ssn"
CONVERT = processor("convert", "field.convert", field=FIELD, type="int")


def build(lab: Lab, plugin: str = "builtin:file", **more: Any) -> None:
    """Every second record can't be converted, and its reason quotes the value."""
    lab.write("in.jsonl", [{"i": 0, "ssn": "5"}, {"i": 1, "ssn": SECRET}])
    letters = queue() if plugin == "builtin:file" else {"plugin": plugin, "window-size": 0}
    usual = {"connectors": [source(), destination()], "processors": [DECODE, CONVERT], "redact": [FIELD]}
    lab.pipeline(**{**usual, "dead-letter-queue": letters, **more})


def reasons_of(lab: Lab) -> list[str]:
    """What the index says of each letter."""
    with lab.store() as store:
        return [row["message"] for row in newest(store, "p", DeadLetterQuery(), 10)]


def test_the_reason_is_masked_and_the_stored_record_is_not(lab: Lab) -> None:
    build(lab, redact=[])
    assert lab.run().error is None
    assert SECRET in reasons_of(lab)[0]  # else this test could not fail


def test_with_redact_it_is_in_no_text(lab: Lab) -> None:
    build(lab)
    rows = list[NackRow]()
    with capture_logs() as logged:
        assert lab.run(observe=lambda step, _: rows.extend(step.dead_letters)).error is None
    assert SECRET not in reasons_of(lab)[0] and MASK in reasons_of(lab)[0]
    assert len(rows) == 1 and SECRET not in str(rows)
    [(_, error, failed)] = lab.letters()
    assert SECRET not in error and failed["ssn"] == SECRET
    assert SECRET not in json.dumps(logged, default=str)


def test_the_error_of_a_pipeline_that_stops_is_masked(lab: Lab) -> None:
    build(lab, **{"dead-letter-queue": queue(1, 0)})
    error = lab.run().error
    assert error is not None and SECRET not in error.message and MASK in error.message


def test_a_log_prints_no_such_value(lab: Lab) -> None:
    build(lab, "builtin:log")
    with capture_logs() as logged:
        assert lab.run().error is None
    printed = [row["record"] for row in logged if row["event"] == "record delivery failed"]
    assert len(printed) == 1 and MASK in printed[0] and SECRET not in printed[0]


def test_a_destination_that_logs_prints_no_such_value(lab: Lab) -> None:
    build(
        lab, processors=[DECODE], connectors=[source(), {"id": "out", "type": "destination", "plugin": "builtin:log"}]
    )
    with capture_logs() as logged:
        assert lab.run().error is None
    printed = [row["record"] for row in logged if row["event"] == "record"]
    assert len(printed) == 2 and all(MASK in line and SECRET not in line for line in printed)


@pytest.mark.parametrize(
    ("after", "message", "wanted"),
    [
        ({"ssn": SECRET}, f"bad {SECRET}!", f"bad {MASK}!"),
        ({"ssn": 5}, "5 of 15 is 5", f"{MASK} of 15 is {MASK}"),
        ({"ssn": {"a": ["x1", "y"]}}, "x1 and y and z", f"{MASK} and {MASK} and z"),
        ({"ssn": 'say "é"'}, 'text "say \\"\\u00e9\\"" is bad', f'text "{MASK}" is bad'),
        ({"ssn": SECRET * 9}, f"text '{SECRET}987-65…' is bad", f"text '{MASK}…' is bad"),
        ({"ssn": None}, "None is bad", "None is bad"),
        ({}, "nothing", "nothing"),
        (b'{"ssn": "raw1"}', "bad raw1", f"bad {MASK}"),
        (b"no json", "bad no json", f"bad {MASK}"),
        (None, "empty", "empty"),
    ],
)
def test_what_is_masked_in_a_text(after: Any, message: str, wanted: str) -> None:
    record = Record("1", {}, after)
    assert Redaction([FIELD]).nack(Nack("c", message), record) == Nack("c", wanted)
    assert record.after == after


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ({"ssn": SECRET, "i": 1}, {"ssn": MASK, "i": 1}),
        ({"i": 1}, {"i": 1}),
        (b'{"ssn": "1", "i": 2}', {"ssn": MASK, "i": 2}),
        (b"no json", MASK.encode()),
        (None, None),
    ],
)
def test_what_is_masked_in_a_record(after: Any, wanted: Any) -> None:
    assert Redaction([FIELD]).record(Record("1", {}, after)).after == wanted


def test_the_queue_has_processors_of_its_own(lab: Lab) -> None:
    build(lab)
    lab.write("in.jsonl", [{"i": 2, "ssn": "x"}, {"i": 3, "ssn": "y"}], mode="a")
    tag = processor("tag", "field.set", field='.Metadata["team"]', value="night")
    skip = processor("skip", "filter", condition="after.payload.after.i == 2")
    build(lab, **{"dead-letter-queue": {**queue(), "processors": [tag, skip]}})
    lab.write("in.jsonl", [{"i": 2, "ssn": "x"}, {"i": 3, "ssn": "y"}], mode="a")
    assert lab.run().error is None
    rows = lab.documents("dead.jsonl")
    assert [(row["metadata"]["team"], row["payload"]["after"]["payload"]["after"]["i"]) for row in rows] == [
        ("night", 1),
        ("night", 3),
    ]
    with lab.store() as store:
        assert len(newest(store, "p", DeadLetterQuery(), 10)) == 3  # filtered records are in the index as well


def test_a_letter_that_its_own_processor_nacks_stops_the_run(lab: Lab) -> None:
    broken = processor("broken", "error", message="no")
    build(lab, **{"dead-letter-queue": {**queue(), "processors": [broken]}})
    error = lab.run().error
    assert error is not None and (error.code, error.node) == ("dead_letters.refused", "p:dead_letters:broken")
    build(lab)
    assert lab.run().error is None and len(lab.letters()) == 1


def test_staging_that_is_lost_is_masked_the_same_again(lab: Lab) -> None:
    """The searched value is only in the original: a processor had renamed the field before the one that failed."""
    rename = processor("rename", "field.rename", mapping=f"{FIELD}:other")
    convert = processor("convert", "field.convert", field=".Payload.After.other", type="int")
    build(lab, processors=[DECODE, rename, convert])
    with crashing("after-prepare"):
        lab.run()
    [staged] = [path for path in lab.root.rglob("dead_letters") if path.is_dir()]
    shutil.rmtree(staged.parent)
    assert lab.run().error is None
    [(_, error, failed)] = lab.letters()
    assert SECRET not in error and MASK in error and failed["other"] == SECRET


BLOCKS = """
def fails(records):
    for record in records:
        if record.after["i"]:
            raise ValueError(f"can't take {record.after['other']}")
    return records
"""
TELLING = """
from conduit_dagster.sdk import DirectDestination, DriverDestination, Sender


def tell(records):
    for record in records:
        if record.after["i"]:
            raise ValueError(f"can't take {record.after['ssn']}")


class Telling(Sender):
    def send(self, records, first):
        tell(records)


class Direct(DirectDestination):
    name = "direct"

    def sender(self, task):
        return Telling()


class Driver(DriverDestination):
    name = "driver"

    def deliver(self, records, delivery):
        tell(records)
"""


def everything(error: Any) -> str:
    """The printed text of an error, with its causes, notes and stack traces."""
    return "".join(traceback.format_exception(error))


def test_an_exception_that_fails_a_block_is_masked(lab: Lab) -> None:
    """The field has another name by then: its value is read from the source again."""
    lab.write("transforms.py", [BLOCKS])
    rename = processor("rename", "field.rename", mapping=f"{FIELD}:other")
    broken = processor("broken", "python", function="transforms:fails", per="block")
    for redact in ([], [FIELD]):
        build(lab, processors=[DECODE, rename, broken], redact=redact)
        error = lab.run().error
        assert error is not None and "can't take" in error.message
        assert (SECRET in everything(error)) == (not redact)
        assert (MASK in error.message) == bool(redact)


def build_telling(lab: Lab, plugin: str, redacts: bool, **more: Any) -> str:
    """A pipeline whose destination quotes what it was given; return its id."""
    lab.write("plugins/telling.py", [TELLING])
    name = f"p{redacts:d}"
    build(
        lab,
        id=name,
        connectors=[source(), {"id": "out", "type": "destination", "plugin": plugin}],
        processors=[DECODE],
        redact=[FIELD] if redacts else [],
        **{"dead-letter-queue": queue(path=f"./{name}-dead.jsonl")},
        **more,
    )
    return name


@pytest.mark.parametrize("plugin", ["direct", "driver"])
def test_what_a_destination_says_of_many_records_and_of_one_is_masked(lab: Lab, plugin: str) -> None:
    """An error that names no record: which values it may quote is known once the record is sent alone."""
    told: dict[bool, list[str]] = {}
    for redacts in (False, True):
        name = build_telling(lab, plugin, redacts)
        errors = [lab.run(name).error for _ in range(2)]
        assert [error.code for error in errors if error] == ["delivery.bulk_failed", "delivery.record_failed"]
        with lab.store() as store, reading(store) as connection:
            causes = connection.execute(sa.select(history.c.detail).where(history.c.pipeline == name)).scalars()
            told[redacts] = [*map(everything, errors), *map(str, causes)]
        assert (SECRET in " ".join(told[redacts])) == (not redacts)
    assert MASK in told[True][1]


@pytest.mark.parametrize("plugin", ["direct", "driver"])
def test_at_most_once_tells_nothing_either(lab: Lab, plugin: str) -> None:
    """A record that was sent and failed is not sent again; only the error is left of it."""
    for redacts in (False, True):
        error = lab.run(build_telling(lab, plugin, redacts, delivery={"strategy": "at-most-once"})).error
        assert error is not None and (SECRET in everything(error)) == (not redacts)


def test_what_fails_before_it_is_logged_is_masked(lab: Lab) -> None:
    """A join's sources are processed on their way into the log."""
    lab.write("transforms.py", [BLOCKS])
    lab.write("in2.jsonl", [{"i": 0}, {"i": 1}])
    rename = processor("rename", "field.rename", mapping=f"{FIELD}:other")
    broken = processor("broken", "python", function="transforms:fails", per="block")
    first = {**source(), "processors": [DECODE, rename, broken]}
    second = {**source("./in2.jsonl"), "id": "in2", "processors": [DECODE]}
    for redact in ([], [FIELD]):
        build(lab, processors=[], connectors=[first, second, destination()], redact=redact, **{"fan-in": "join"})
        error = lab.run().error
        assert error is not None and (SECRET in everything(error)) == (not redact)


QUEUE = """
from conduit_dagster.sdk import DriverDestination


class Full(DriverDestination):
    name = "full"

    def deliver(self, records, delivery):
        [letter] = records
        raise ValueError(f"no room for {letter.after['payload']['after']['ssn']}")
"""


def test_a_queue_that_fails_tells_nothing_either(lab: Lab) -> None:
    lab.write("plugins/full.py", [QUEUE])
    for redact in ([], [FIELD]):
        build(lab, "full", redact=redact)
        for _ in range(2):  # of all dead letters together, then of each
            error = lab.run().error
            assert error is not None and (SECRET in everything(error)) == (not redact)
        with lab.store() as store, reading(store) as connection:
            told = " ".join(map(str, connection.execute(sa.select(history.c.detail)).scalars()))
        assert (SECRET in told) == (not redact)
        shutil.rmtree(lab.root / ".conduit")
