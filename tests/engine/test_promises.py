"""A user's class that derives from a built-in one: it has the promises of the methods that it does not override."""

from __future__ import annotations

from lab.support import Lab, destination, processor, source

from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.processors.omit import Omit

PLUGINS = """
from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.processors.omit import Omit
from conduit_dagster.sdk import Block, Writer


class Odd(FileSource):
    name = "odd"

    def read(self, split, options):
        for block in super().read(split, options):
            for record in block.records:
                record.metadata, record.after = {}, {"n": float("nan"), "raw": record.after.decode()}
            yield Block(block.records, block.boundary)


class Loud(FileDestination):
    name = "loud"

    def writer(self, task):
        return LoudWriter(super().writer(task))


class LoudWriter(Writer):
    def __init__(self, inner):
        self._inner = inner

    def write(self, records):
        for record in records:
            record.after["raw"] = record.after["raw"].upper()
        return self._inner.write(records)

    def finish(self):
        return self._inner.finish()

    def abort(self):
        self._inner.abort()


class Counting(Omit):
    name = "counting"

    def process(self, record):
        record.metadata["key"] = str(record.key)
        record.after["new"] = "a" in record.metadata
        record.metadata["a"] = "b"
        return record
"""


def test_code_of_a_derived_class_is_taken_as_any_authors(lab: Lab) -> None:
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "derived.py").write_text(PLUGINS)
    lab.write("in.jsonl", ["a", "b"])
    loud = destination("loud")
    lab.pipeline(
        connectors=[source(plugin="odd"), {**loud, "plugin": "loud"}, destination(), destination("whole")],
        processors=[processor("counting", "counting", fields="x")],
    )
    assert lab.run().error is None
    rows = [{"n": "NaN", "raw": raw, "new": False} for raw in ("a", "b")]
    assert lab.documents("out.jsonl") == lab.documents("whole.jsonl") == rows
    assert [row["raw"] for row in lab.documents("loud.jsonl")] == ["A", "B"]


def test_a_class_that_overrides_no_such_method_keeps_the_promises() -> None:
    class Named(FileSource):
        name = "named"

        def lag(self, position: object) -> int | None:
            return None

    class Renamed(FileDestination):
        name = "renamed"

    assert Named.gives_json and Named.sets_metadata and Named.gives_plain
    assert Renamed.takes_payloads and not Renamed.changes_records


def test_a_promise_that_a_class_makes_itself_stays() -> None:
    class Own(Omit):
        shares_records = True

        def process_block(self, records: list[object]) -> list[object]:
            return records

    class Further(Own):
        def process(self, record: object) -> object:
            return record

    assert Own.shares_records and Further.shares_records and not Own.keyless
