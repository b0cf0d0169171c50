"""Processors made by name, and Conduit's own small pipelines run through processors alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.http_server import serving
from lab.schema_registry_server import RegistryServer

from conduit_dagster.builtin_plugins import PROCESSORS
from conduit_dagster.connectors.formats import make_format
from conduit_dagster.expressions import Clock, compile_condition
from conduit_dagster.processors.common.in_place import InPlaceProcessor
from conduit_dagster.record import READ_AT, Record, copy
from conduit_dagster.sdk import Nack, Processor, ProcessorContext, Result

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
Settings = dict[str, str]


def make(plugin: str, settings: Settings | None = None, now_ns: int = 0) -> Processor:
    kind = PROCESSORS.find(plugin, {})
    assert kind is not None
    return kind(kind.Settings.model_validate(settings or {}), ProcessorContext("p", "p:x", Clock(now_ns)))


def documents(results: Iterable[Result]) -> list[dict[str, Any]]:
    """The payloads of results, each a record with a document."""
    found: list[dict[str, Any]] = []
    for result in results:
        assert isinstance(result, Record) and isinstance(result.after, dict), result
        found.append(result.after)
    return found


def check_loop(plugin: str, settings: Settings, records: list[Record]) -> None:
    """Usual records of a block take a faster path; it gives the same results and nacks as each record alone."""
    subject, alone = make(plugin, settings), [copy(record) for record in records]
    assert isinstance(subject, InPlaceProcessor) and (subject.loop or subject.payload_code) is not None
    results = list(subject.process_block(records))
    subject = make(plugin, settings)
    assert results == [subject.process_block([record])[0] for record in alone]
    assert records == alone


@pytest.fixture
def registry_server(tmp_path: Path) -> Iterator[RegistryServer]:
    """A schema registry behind HTTP."""
    with serving(RegistryServer(tmp_path / "behind")) as server:
        yield server


@pytest.fixture
def processor() -> Callable[..., Processor]:
    """Create a processor by its plugin's name and settings."""
    return make


@pytest.fixture
def run() -> Callable[..., list[Any]]:
    """Run payloads through one processor as one block; a result is a payload, ``DROP`` or a ``Nack``."""

    def run(plugin: str, settings: Settings, *payloads: Any) -> list[Any]:
        records = [Record(i, {"m": "1"}, payload) for i, payload in enumerate(payloads)]
        results = make(plugin, settings).process_block(records)
        return [result.after if isinstance(result, Record) else result for result in results]

    return run


@pytest.fixture
def golden() -> Callable[[str], None]:
    """Assert that a golden pipeline's processors and format write what Conduit wrote."""

    def check(case: str) -> None:
        if not GOLDEN.is_dir():
            pytest.skip(f"no golden cases at {GOLDEN}")
        folder = GOLDEN / case
        pipeline = json.loads((folder / "pipeline.yaml").read_text())["pipelines"][0]
        records, nacked = _processed(pipeline["processors"], list(_read(folder / "in.jsonl")))
        destination = next(c["settings"] for c in pipeline["connectors"] if c["type"] == "destination")
        assert _lines(_written(records, destination)) == _lines((folder / "expected-out.jsonl").read_bytes())
        dead = folder / "expected-dead.jsonl"
        if dead.exists():
            expected = [json.loads(line)["payload"]["after"] for line in dead.read_bytes().splitlines()]
            assert _lines(_written(nacked, {})) == _exact(expected)

    return check


def _read(path: Path) -> Iterator[Record]:
    position = 0
    metadata = {
        "conduit.source.connector.id": "golden:in",
        "file.path": "./in.jsonl",
        "opencdc.readAt": "TIME",
    }
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        position += len(line)
        yield Record(position, metadata, line.rstrip(b"\n"), str(number).encode())


def _processed(steps: list[dict[str, Any]], records: list[Record]) -> tuple[list[Record], list[Record]]:
    nacked: list[Record] = []
    for step in steps:
        results = _conditional(make(step["plugin"], step.get("settings")), step.get("condition"), records)
        nacked += [record for record, result in zip(records, results, strict=True) if isinstance(result, Nack)]
        records = [record for result in results for record in _several(result)]
    return records, sorted(nacked, key=lambda record: int(record.position))


def _several(result: Result) -> list[Record]:
    return result if isinstance(result, list) else [result] if isinstance(result, Record) else []


def _conditional(processor: Processor, condition: str | None, records: list[Record]) -> list[Result]:
    if condition is None:
        return processor.process_block(records)
    return [_if(compile_condition(condition, Clock()), processor, record) for record in records]


def _if(condition: Callable[[Record], bool], processor: Processor, record: Record) -> Result:
    try:
        return processor.process_block([record])[0] if condition(record) else record
    except Exception as error:  # noqa: BLE001  # as the engine does
        return Nack("condition", str(error))


def _written(records: list[Record], destination: Settings) -> bytes:
    name = destination.get("sdk.record.format", "opencdc/json")
    for record in records:
        if record.metadata.get(READ_AT, "").isdigit():  # times may differ
            record.metadata = {**record.metadata, READ_AT: "TIME"}
    lines, refused = make_format(name, destination.get("sdk.record.format.options", "")).encode_block(records)
    assert not refused
    return lines


def _lines(data: bytes) -> list[Any]:
    return _exact([_value(line) for line in data.splitlines()])


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _exact(values: list[Any]) -> list[Any]:
    """Integers as Conduit's floats: the only difference in values that golden/README.md allows."""
    return json.loads(json.dumps(values, default=bytes.decode), parse_int=float)
