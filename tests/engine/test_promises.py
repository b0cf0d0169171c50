"""A user's class that derives from a built-in one: it has the promises of the methods that it does not override."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import pytest
from lab.support import Lab, destination, processor, source

from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.expressions import Clock
from conduit_dagster.processors.clone import Clone
from conduit_dagster.processors.csv_decode import CsvDecode
from conduit_dagster.processors.error import Error
from conduit_dagster.processors.field_convert import FieldConvert
from conduit_dagster.processors.filter import Filter
from conduit_dagster.processors.json_decode import JsonDecode
from conduit_dagster.processors.omit import Omit
from conduit_dagster.processors.pick import Pick
from conduit_dagster.processors.python import Python
from conduit_dagster.processors.schema import SchemaProcessor
from conduit_dagster.processors.skip import Skip
from conduit_dagster.processors.webhook_http import WebhookHttp
from conduit_dagster.record import Record, copy
from conduit_dagster.sdk import FatalError, Processor, ProcessorContext, Result

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


class Marking(Processor):
    """Marks what the built-in beside it returns: a record that passes keeps no other trace of it."""

    def process(self, record: Record) -> Any:
        record.after = {"given": record.after}
        return record


class MarkingFilter(Marking, Filter): ...


class MarkingSkip(Marking, Skip): ...


class MarkingClone(Marking, Clone): ...


class MarkingError(Marking, Error): ...


class MarkingCsv(Marking, CsvDecode): ...


class MarkingPython(Marking, Python): ...


class MarkedPick(Pick):
    def changed(self, document: dict[str, Any]) -> dict[str, Any]:
        return {"given": super().changed(document)}


class MarkedConvert(FieldConvert):
    def changed(self, value: Any) -> Any:
        return super().changed(value.replace(",", ""))


class MarkedJson(JsonDecode):
    def changed(self, value: Any) -> Any:
        return {"given": super().changed(value)}


class MarkedBlocks(MarkedJson):
    def process_block(self, records: list[Record]) -> list[Result]:
        return super(MarkedJson, self).process_block(records)


@pytest.mark.parametrize(
    ("kind", "settings", "payload", "gives"),
    [
        (MarkingFilter, {}, {"a": 1}, {"given": {"a": 1}}),
        (MarkingSkip, {"field": "a", "operator": ">", "match": "1"}, {"a": 1}, {"given": {"a": 1}}),
        (MarkingClone, {"count": 1}, {"a": 1}, {"given": {"a": 1}}),
        (MarkingError, {"message": "no"}, {"a": 1}, {"given": {"a": 1}}),
        (MarkingCsv, {"columns": "a:int"}, b"1", {"given": b"1"}),
        (
            MarkingPython,
            {"function": "m:f", "per": "block", "module.source": "def f(records):\n    return records\n"},
            {"a": 1},
            {"given": {"a": 1}},
        ),
        (MarkedPick, {"fields": "a"}, {"a": 1, "b": 2}, {"given": {"a": 1}}),
        (MarkedConvert, {"field": ".Payload.After.a", "type": "int"}, {"a": "1,000"}, {"a": 1000}),
        (MarkedConvert, {"field": ".Payload.After.a", "type": "string"}, {"a": "1,000"}, {"a": "1000"}),
        (MarkedJson, {"field": ".Payload.After"}, b'{"a": 1}', {"given": {"a": 1}}),
        (MarkedBlocks, {"field": ".Payload.After"}, b'{"a": 1}', {"given": {"a": 1}}),
    ],
)
def test_a_block_passes_the_methods_that_a_derived_class_overrides(
    kind: type[Processor], settings: dict[str, Any], payload: Any, gives: Any
) -> None:
    """The built-in's fast path for blocks left them out, while a single record passed them."""
    results = _made(kind, settings).process_block([copy(Record(place, {}, payload)) for place in range(2)])
    assert [result.after if isinstance(result, Record) else result for result in results] == [gives, gives]


def test_a_class_that_overrides_process_still_sends_side_by_side() -> None:
    both = Barrier(2)

    class Waiting(WebhookHttp):
        def process(self, record: Record) -> Record:
            both.wait(120)
            return record

    settings = {"request.url": "http://localhost", "request.concurrency": "2"}
    records = [Record(1, {}, {}), Record(2, {}, {})]
    assert _made(Waiting, settings).process_block(records) == records


def test_a_frozen_contract_stops_the_step_of_a_derived_class_too() -> None:
    class Strict(SchemaProcessor):
        def process(self, record: Record) -> Any:
            return super().process(record)

    strict = _made(Strict, {"fields": "id:integer", "data_type": "freeze"})
    with pytest.raises(FatalError, match="the contract is frozen"):
        strict.process_block([Record(1, {}, {"id": 1}), Record(2, {}, {"id": "x"})])


def _made(kind: type[Processor], settings: dict[str, Any]) -> Processor:
    return kind(kind.Settings.model_validate(settings), ProcessorContext("p", "p:x", Clock()))
