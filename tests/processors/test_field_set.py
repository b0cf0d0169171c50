"""``field.set``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from conduit_dagster.processors.field_set import FieldSet, FieldSetSettings
from conduit_dagster.record import Record
from conduit_dagster.sdk import Nack

Run = Callable[..., list[Any]]


@pytest.mark.parametrize(
    "case",
    [
        "set-literal",
        "set-key",
        "set-metadata",
        "set-nested-new",
        "set-on-raw",
        "set-operation",
        "set-operation-bad",
        "set-over-scalar",
        "set-template",
        "set-template-missing",
        "cond-missing-field",
    ],
)
def test_golden(golden: Callable[[str], None], case: str) -> None:
    """The output equals Conduit's."""
    golden(case)


def test_a_block_changed_throughout_is_the_very_list(processor: Callable[..., Any]) -> None:
    """No list is built if nothing was refused, also if a payload had to be created."""
    records = [Record(1, {}, {"a": 1}), Record(2, {}, None)]
    assert processor("field.set", {"field": ".Payload.After.k", "value": "v"}).process_block(records) is records
    assert [r.after for r in records] == [{"a": 1, "k": "v"}, {"k": "v"}]


def test_refused_records_stand_between_the_others(run: Run) -> None:
    """A nack takes its record's place in a new list; the records around it are changed once."""
    results = run("field.set", {"field": ".Payload.After.n", "expression": "after.n + 1"}, {"n": 1}, b"raw", {"n": 2})
    assert results[0] == {"n": 2}
    assert results[2] == {"n": 3}
    assert results[1].code == "expression.failed"


@pytest.mark.parametrize(
    "expression", ["after.a + after.b", "[after.a + after.b]", "after.a + after.b + len(metadata)"]
)
def test_an_integer_of_more_digits_than_json_readers_take_is_refused(run: Run, expression: str) -> None:
    """Nothing could write it: neither the destination nor the dead letter."""
    settings = {"field": ".Payload.After.x", "expression": expression}
    nines = 10**4300 - 1
    fits, *nacks = run("field.set", settings, {"a": nines, "b": -9}, {"a": nines, "b": 1}, {"a": -nines, "b": -1 - 9})
    assert fits["a"] == nines and fits["x"] in (nines - 9, [nines - 9], nines - 8)
    assert {(nack.code, nack.message) for nack in nacks} == {
        ("field.set.invalid", "JSON cannot hold an integer of more than 4300 digits")
    }


def test_raw_payload_is_unresolved(run: Run) -> None:
    """The nack has a fix."""
    [nack] = run("field.set", {"field": ".Payload.After.x", "value": "1"}, b"raw")
    assert nack.code == "field.unresolved"
    assert "put json.decode before it" in nack.message


@pytest.mark.parametrize("field", [".Payload.After.x", ".Payload.After.a.x"])
@pytest.mark.parametrize(
    ("expression", "payload"),
    [
        ("after.a.big * 1e308", {"a": {"big": 1e300}}),
        ("[after.a.big * 1e308]", {"a": {"big": 1e300}}),
        ("'\\ud800'", {"a": {}}),
        ("['\\ud800']", {"a": {}}),
    ],
)
def test_what_json_cannot_hold_is_a_nack(run: Run, field: str, expression: str, payload: Any) -> None:
    """Infinity would silently become null, and a lone surrogate would fail at the destination."""
    try:
        FieldSetSettings(field=field, expression=expression)
    except ValidationError:
        pytest.skip("refused when the file is checked, which is better")
    [nack] = run("field.set", {"field": field, "expression": expression}, payload)
    assert isinstance(nack, Nack)


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": math.nan}, [(-math.inf,)], {1: 2}, {1, 2}, object()])
def test_own_refuses_what_json_cannot_hold(value: Any) -> None:
    """However deep it is."""
    from conduit_dagster.processors.field_set import own
    from conduit_dagster.sdk import ProcessError

    with pytest.raises(ProcessError, match="JSON cannot hold"):
        own(value)


def test_values_keep_their_type_and_integers_their_digits(run: Run) -> None:
    """An expression's value is not turned into text; an integer of 20 digits stays exact."""
    settings = {"field": ".Payload.After.copy", "expression": "after.v"}
    values = [12345678901234567890, 1.5, True, None, "ü", [1, {"x": []}], {"y": None}]
    assert [r["copy"] for r in run("field.set", settings, *({"v": v} for v in values))] == values


def test_a_copied_document_is_a_copy(run: Run) -> None:
    """Two fields never share a document, and a payload never contains itself."""
    [after] = run("field.set", {"field": ".Payload.After.b", "expression": "after.a"}, {"a": {"x": [1]}})
    assert after["b"] == after["a"]
    assert after["b"] is not after["a"]
    assert after["b"]["x"] is not after["a"]["x"]
    [after] = run("field.set", {"field": ".Payload.After.self", "expression": "after"}, {"a": 1})
    assert after == {"a": 1, "self": {"a": 1}}


def test_raw_data_in_a_document_becomes_text(processor: Callable[..., Any]) -> None:
    """A raw key copied into the payload is its text; one that is not UTF-8 is a nack."""
    subject = processor("field.set", {"field": ".Payload.After.k", "expression": "key"})
    records = [Record(1, {}, {}, key=b"k1"), Record(2, {}, {}, key=b"\xff")]
    results = subject.process_block(records)
    assert results[0].after == {"k": "k1"}
    assert results[1].code == "field.set.invalid"


def test_a_whole_payload_can_be_copied(processor: Callable[..., Any]) -> None:
    """Raw data stays raw data and a document a document of its own."""
    subject = processor("field.set", {"field": ".Payload.Before", "expression": "after"})
    records = [Record(1, {}, b"\xff"), Record(2, {}, {"a": []})]
    assert subject.process_block(records) is records
    assert records[0].before == b"\xff"
    assert records[1].before == {"a": []}
    assert records[1].before is not records[1].after


def test_metadata_stays_shared(processor: Callable[..., Any]) -> None:
    """Records that shared their metadata share it afterwards, and the old dict is unchanged."""
    shared = {"a": "1"}
    records = [Record(i, shared, {}) for i in range(3)] + [Record(3, {"b": "2"}, {})]
    processor("field.set", {"field": ".Metadata.team", "value": "blue"}).process_block(records)
    assert records[0].metadata == {"a": "1", "team": "blue"}
    assert records[0].metadata is records[2].metadata
    assert records[3].metadata == {"b": "2", "team": "blue"}
    assert shared == {"a": "1"}


def test_metadata_takes_no_number(run: Run) -> None:
    """A number from an expression is refused, with the fix."""
    [nack] = run("field.set", {"field": ".Metadata.n", "expression": "after.n"}, {"n": 1})
    assert nack.code == "field.unsuitable"
    assert "str(" in nack.message


@pytest.mark.parametrize("name", ["a.b", "IMDB Rating", 'it"s', "]", ""])
def test_odd_names(run: Run, name: str) -> None:
    """Any field can be set, whatever its name."""
    field = '.Payload.After["' + name.replace('"', '\\"') + '"]'
    assert run("field.set", {"field": field, "value": "v"}, {}) == [{name: "v"}]


@pytest.mark.parametrize(
    ("settings", "kind", "column"),
    [
        ({"field": ".Payload.After.x"}, "config.field_invalid", None),
        ({"field": ".Payload.After.x", "value": "1", "expression": "1"}, "config.field_invalid", None),
        ({"field": ".Payload.After..x", "value": "1"}, "reference", 14),
        ({"field": ".Position", "value": "1"}, "reference", 0),
        ({"field": ".Payload.After.x", "value": "{{ nope . }}"}, "expression", ...),
        ({"field": ".Payload.After.x", "expression": "after."}, "expression", ...),
        ({"field": ".Payload.After.x", "value": "\ud800"}, "config.field_invalid", None),
        ({"value": "1"}, "missing", ...),
    ],
)
def test_bad_settings_are_found_when_the_file_is_checked(settings: dict[str, str], kind: str, column: Any) -> None:
    """Each finding has a kind, a column where one is known, and a fix."""
    with pytest.raises(ValidationError) as caught:
        FieldSetSettings.model_validate(settings)
    [finding] = caught.value.errors()
    assert finding["type"] == kind
    if column is not ...:
        assert finding["ctx"]["column"] == column
        assert finding["ctx"]["fix"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"field": ".Payload.After.x", "value": "v"}, False),
        ({"field": ".Payload.After.x", "expression": "after.y"}, False),
        ({"field": ".Payload.After.x", "expression": "key"}, True),
        ({"field": ".Payload.After.x", "value": "{{ .Key }}"}, True),
        ({"field": ".Payload.After.x", "expression": "position"}, True),
        ({"field": ".Key", "value": "v"}, True),
    ],
)
def test_reads_key(processor: Callable[..., FieldSet], settings: dict[str, str], expected: bool) -> None:
    """A source may omit the key only if neither the field nor its value depends on it."""
    assert processor("field.set", settings).reads_key is expected


def test_now_is_the_steps_time(processor: Callable[..., Any]) -> None:
    """A repeat of a step gives the same bytes."""
    subject = processor("field.set", {"field": ".Payload.After.t", "expression": "now()"}, 1_700_000_000_000_000_000)
    assert subject.process(Record(1, {}, {})).after == {"t": "2023-11-14T22:13:20Z"}
