"""``field.rename``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from conduit_dagster.processors.field_rename import FieldRenameSettings
from conduit_dagster.record import Record

Run = Callable[..., list[Any]]


@pytest.mark.parametrize("case", ["rename", "rename-nested", "processor-order"])
def test_golden(golden: Callable[[str], None], case: str) -> None:
    """The output equals Conduit's."""
    golden(case)


@pytest.mark.parametrize(
    ("mapping", "before", "after"),
    [
        (".Payload.After.a:b", {"a": 1, "z": 2}, {"z": 2, "b": 1}),
        (".Payload.After.a:b", {}, {"b": None}),
        (".Payload.After.a:b", None, {"b": None}),
        (".Payload.After.a:a", {}, {}),
        (".payload.after.a:b", {"a": 1}, {"b": 1}),
        (".Payload.After.a:b , .Payload.After.b:c", {"a": 1}, {"c": 1}),
        (".Payload.After.a:b,.Payload.After.c.d:e", {"a": 1, "c": {"d": 2}}, {"b": 1, "c": {"e": 2}}),
        ('.Payload.After["a,b"]:c,.Payload.After["d:e"]:f', {"a,b": 1, "d:e": 2}, {"c": 1, "f": 2}),
        ('.Payload.After.a:"x,y:z \\"q\\""', {"a": 1}, {'x,y:z "q"': 1}),
        (".Payload.After.IMDB Rating:imdb rating", {"IMDB Rating": 1}, {"imdb rating": 1}),
    ],
)
def test_renames(run: Run, mapping: str, before: Any, after: Any) -> None:
    """One mapping after the other; a missing field becomes null; unusual names are in brackets or quotes."""
    assert run("field.rename", {"mapping": mapping}, before) == [after]


@pytest.mark.parametrize(
    ("mapping", "before", "left"),
    [
        (".Payload.After.a:b", {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (".Payload.After.a:b", {"a": 1, "b": None}, {"a": 1, "b": None}),
        (".Payload.After.a:b", {"b": 2}, {"b": 2}),
        (".Payload.After.a:a", {"a": 1}, {"a": 1}),
        (".Payload.After.a:n,.Payload.After.b:n", {"a": 1, "b": 2}, {"b": 2, "n": 1}),
        (".Payload.After.a:c,.Payload.After.b:d", {"a": 1, "b": 2, "d": 3}, {"b": 2, "c": 1, "d": 3}),
        (".Payload.After.x.a:b", {"x": {"a": 1, "b": 2}}, {"x": {"a": 1, "b": 2}}),
    ],
)
def test_no_field_is_overwritten(run: Run, mapping: str, before: Any, left: Any) -> None:
    """As in Conduit, an existing new name nacks the record; earlier renamings stay in the dead letter."""
    [nack] = run("field.rename", {"mapping": mapping}, before)
    assert nack.code == "field.exists" and before == left


def test_no_metadata_entry_is_overwritten(processor: Callable[..., Any]) -> None:
    subject = Record(1, {"a": "1", "b": "2"}, {})
    [nack] = processor("field.rename", {"mapping": ".Metadata.a:b"}).process_block([subject])
    assert nack.code == "field.exists" and subject.metadata == {"a": "1", "b": "2"}


def test_refused_records_are_not_renamed_twice(run: Run) -> None:
    """The records around a nack are changed once, on the fast path as on the slow one."""
    for mapping in (".Payload.After.a:b", ".Payload.After.a:b,.Payload.After.c.d:e"):
        results = run("field.rename", {"mapping": mapping}, {"a": 1}, b"raw", {"a": 2, "b": 3}, {"a": 4})
        assert [r["b"] for r in (results[0], results[3])] == [1, 4]
        assert [r.code for r in results[1:3]] == ["field.unresolved", "field.exists"]


def test_metadata(processor: Callable[..., Any]) -> None:
    """A metadata entry is renamed in a new dict; the rest of the reference is its whole name."""
    shared = {"a.b": "1"}
    subject = Record(1, shared, {})
    processor("field.rename", {"mapping": ".Metadata.a.b:c"}).process_block([subject])
    assert (subject.metadata, shared) == ({"c": "1"}, {"a.b": "1"})


@pytest.mark.parametrize(
    ("mapping", "kind", "column"),
    [
        ("", "missing", None),
        (" , ", "config.field_invalid", 0),
        (".Payload.After.a", "config.field_invalid", 0),
        (".Payload.After.a:", "config.field_invalid", 0),
        (".Payload.After.a:b:c", "config.field_invalid", 0),
        (".Payload.After.a:b, .Payload.After..c:d", "reference", 34),
        (".Payload.After.a:b,.Position:d", "reference", 19),
        (".Payload.After:x", "reference", 0),
        ('.Payload.After["a"]' + '["a"]' * 60, "config.field_invalid", 0),
        (".Metadata:x", "reference", 0),
    ],
)
def test_bad_settings(mapping: str, kind: str, column: int | None) -> None:
    """A finding's column counts from the start of the whole mapping."""
    with pytest.raises(ValidationError) as caught:
        FieldRenameSettings(mapping=mapping)
    [finding] = caught.value.errors()
    assert (finding["type"], finding.get("ctx", {}).get("column")) == (kind, column)


def test_reads_key(processor: Callable[..., Any]) -> None:
    """Only a renaming within the key reads it."""
    assert processor("field.rename", {"mapping": ".Payload.After.a:b"}).reads_key is False
    assert processor("field.rename", {"mapping": ".Payload.After.a:b,.Key.a:b"}).reads_key is True
