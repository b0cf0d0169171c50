"""``field.exclude``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from conduit_dagster.processors.field_exclude import FieldExcludeSettings
from conduit_dagster.record import Record

Run = Callable[..., list[Any]]


@pytest.mark.parametrize("case", ["exclude", "exclude-missing", "exclude-whole"])
def test_golden(golden: Callable[[str], None], case: str) -> None:
    """The output equals Conduit's."""
    golden(case)


@pytest.mark.parametrize(
    ("fields", "before", "after"),
    [
        (".Payload.After.a", {"a": 1, "b": 2}, {"b": 2}),
        (".Payload.After.a", {}, {}),
        (".Payload.After.a", None, {}),
        (".Payload.After.a , .Payload.After.b,", {"a": 1, "b": 2, "c": 3}, {"c": 3}),
        ('.Payload.After["a,b"],.Payload.After["c]"]', {"a,b": 1, "c]": 2, "d": 3}, {"d": 3}),
        (".Payload.After['it\"s, a'],.Payload.After.x", {'it"s, a': 1, "x": 2}, {}),
        (".Payload.After.a.b", {"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}),
        (".Payload.After", b"raw", None),
        (".Payload", {"a": 1}, None),
    ],
)
def test_excludes(run: Run, fields: str, before: Any, after: Any) -> None:
    """A comma inside brackets does not separate; a missing field is not an error."""
    assert run("field.exclude", {"fields": fields}, before) == [after]


def test_raw_payloads_are_refused_in_their_place(run: Run) -> None:
    """One field or several, the nack is in the record's place."""
    for fields in (".Payload.After.a", ".Payload.After.a,.Payload.After.b", ".Payload.After.a.b"):
        results = run("field.exclude", {"fields": fields}, b"raw", {}, b"raw")
        assert [getattr(r, "code", None) for r in results] == ["field.unresolved", None, "field.unresolved"]


def test_metadata_and_key(processor: Callable[..., Any]) -> None:
    """Metadata is replaced; the shared dict keeps its entry."""
    shared = {"a": "1", "b": "2"}
    subject = Record(1, shared, {}, key={"k": 1})
    processor("field.exclude", {"fields": ".Metadata.a,.Key.k"}).process_block([subject])
    assert (subject.metadata, subject.key, len(shared)) == ({"b": "2"}, {}, 2)


@pytest.mark.parametrize(
    ("fields", "kind", "column"),
    [
        ("", "missing", None),
        (" , ", "config.field_invalid", 0),
        (".Position", "reference", 0),
        (".Payload.After.a,.Operation", "reference", 17),
        (".Payload.After.a,  .Payload.Aft.b", "reference", 27),
    ],
)
def test_bad_settings(fields: str, kind: str, column: int | None) -> None:
    """A finding's column counts from the start of the whole list."""
    with pytest.raises(ValidationError) as caught:
        FieldExcludeSettings(fields=fields)
    [finding] = caught.value.errors()
    assert (finding["type"], finding.get("ctx", {}).get("column")) == (kind, column)


def test_a_nack_keeps_whole_parts(processor: Callable[..., Any]) -> None:
    """As in Conduit, a dead letter has a key that was removed before the nack; removed fields stay removed."""
    record = Record(1, {"m": "1"}, {"s": "text", "x": 1}, b"k", {"b": 1})
    fields = ".Key,.Payload.Before,.Payload.After.x,.Metadata.m,.Payload.After.s.y"
    [nack] = processor("field.exclude", {"fields": fields}).process_block([record])
    assert nack.code == "field.unresolved"
    assert record == Record(1, {}, {"s": "text"}, b"k", {"b": 1})


def test_small_letters(run: Callable[..., list[Any]]) -> None:
    """Conduit accepts the parts of a record in lower case as well."""
    assert run("field.exclude", {"fields": ".payload.after.a"}, {"a": 1, "b": 2}) == [{"b": 2}]
    assert run("field.exclude", {"fields": ".payload"}, {"a": 1}) == [None]


def test_reads_key(processor: Callable[..., Any]) -> None:
    """Only an exclusion from the key reads it."""
    assert processor("field.exclude", {"fields": ".Payload.After.a"}).reads_key is False
    assert processor("field.exclude", {"fields": ".Key"}).reads_key is True
