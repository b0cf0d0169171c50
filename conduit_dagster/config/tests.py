"""The ``tests:`` of a pipeline file: input records, mocked nodes and expected output."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.model_findings import Section
from conduit_dagster.config.tree import typed
from conduit_dagster.record import Operation


def _data(value: Any) -> Any:
    found = typed(value)
    if found is None or isinstance(found, str | dict):
        return found
    raise refuse("a payload is a document or raw data", expected="a mapping, or a text", fix="put it into a field")


Part = Annotated[dict[str, Any] | str | None, BeforeValidator(_data)]


class RecordParts(Section):
    """Parts of a record. A mapping is a document, a string is raw data, null is no data."""

    empty: ClassVar[frozenset[str]] = frozenset({"key", "before", "after"})

    operation: Operation | None = None
    """Operation of the record. Defaults to `create` for an input record."""

    metadata: dict[str, str] = {}
    """Metadata entries. Of an output record only the listed entries are compared."""

    key: Part = None
    """The key."""

    before: Part = None
    """The payload before the change."""

    after: Part = None
    """The payload after the change."""


class ExpectedNack(Section):
    """A record that must be nacked. Fields that are not given are not compared."""

    node: str | None = None
    """Node that nacks it: `convert`, or `out:convert` for a processor of the connector `out`."""

    code: str | None = None
    """Error code of the nack."""

    message: str | None = None
    """Text that the message must contain."""


class Mock(Section):
    """Mock of a processor; without any key, records pass unchanged."""

    record: RecordParts | None = None
    """Parts that replace those of each record."""

    drop: bool = False
    """Whether it drops each record."""

    nack: str | None = None
    """Message with which it nacks each record (code `processor.error`)."""


class Expected(Section):
    """Expected result of the records."""

    destinations: dict[str, list[RecordParts]] = {}
    """Records sent to each destination, in order. Unlisted destinations are not compared; payloads are compared whole.
    """

    nacked: list[ExpectedNack] = []
    """All expected nacks, in order. A nack that is not listed fails the test."""

    filtered: dict[str, int] = {}
    """Number of records that each node drops. Only the listed nodes are compared."""


class PipelineTest(Section):
    """One test case: only its records are read, and nothing is written."""

    name: str
    """What the test proves."""

    source: str | None = None
    """Source of the records; required if there are several sources."""

    records: list[RecordParts]
    """Input records."""

    mocks: dict[str, Mock] = {}
    """Mocks of processors, by node: `enrich`, or `out:enrich` for one of the connector `out`."""

    expect: Expected = Expected()
    """Expected output."""
