"""The ``tests:`` of a pipeline file: records that go in, nodes that are mocked, and what must come out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from conduit_dagster.config.check import Section, refuse
from conduit_dagster.config.tree import typed


def _data(value: Any) -> Any:
    found = typed(value)
    if found is None or isinstance(found, str | dict):
        return found
    raise refuse("a payload is a document or raw data", expected="a mapping, or a text", fix="put it into a field")


Part = Annotated[dict[str, Any] | str | None, BeforeValidator(_data)]
Operation = Literal["create", "update", "delete", "snapshot"]


class RecordParts(Section):
    """Parts of a record. A mapping is a document, a text is raw data."""

    operation: Operation | None = None
    """What it does. Without it, a record that goes in is a create."""

    metadata: dict[str, str] = {}
    """Entries of the metadata. Of a record that comes out only those that are named are compared."""

    key: Part = None
    """The key."""

    before: Part = None
    """The payload before the change."""

    after: Part = None
    """The payload after it."""


class ExpectedNack(Section):
    """A record that must be nacked. What is not given is not compared."""

    node: str | None = None
    """By which node: `convert`, or `out:convert` for a processor of the connector `out`."""

    code: str | None = None
    """With which code."""

    message: str | None = None
    """What the message must hold."""


class Mock(Section):
    """What stands in for a processor; with nothing given, records pass it unchanged."""

    record: RecordParts | None = None
    """These parts replace those of each record."""

    drop: bool = False
    """It drops each record."""

    nack: str | None = None
    """It nacks each record, with this message (code `processor.error`)."""


class Expected(Section):
    """What must come of the records."""

    destinations: dict[str, list[RecordParts]] = {}
    """By destination, what it is sent, in order. What is not named is not compared; a payload is compared whole."""

    nacked: list[ExpectedNack] = []
    """The nacks, in order. One that is not here fails the test."""

    filtered: dict[str, int] = {}
    """By node, how many records it drops. Only those that are named are compared."""


class PipelineTest(Section):
    """One case: nothing is read but its records, and nothing is written."""

    name: str
    """What it shows."""

    source: str | None = None
    """The source that the records come from; needed where there are several."""

    records: list[RecordParts]
    """What goes in."""

    mocks: dict[str, Mock] = {}
    """Processors that something stands in for, by node: `enrich`, or `out:enrich` for one of the connector `out`."""

    expect: Expected = Expected()
    """What must come out."""
