"""``field.convert``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from conduit_dagster.processors.field_convert import FieldConvertSettings, to_float, to_int, to_string, to_time
from conduit_dagster.sdk import Nack

Run = Callable[..., list[Any]]
NACK = object()


@pytest.mark.parametrize(
    "case",
    [
        "convert-bool",
        "convert-float",
        "convert-int",
        "convert-int-values",
        "convert-string",
        "convert-string-values",
        "convert-time",
    ],
)
def test_golden(golden: Callable[[str], None], case: str) -> None:
    """The output equals Conduit's."""
    golden(case)


@pytest.mark.parametrize("field", [".Payload.After.v", ".Payload.After.o.v"])
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", "+12", 12),
        ("int", "1_000", NACK),
        ("int", "\uff11\uff12", NACK),
        ("int", "²", NACK),
        ("int", "12\n", NACK),
        ("int", 9223372036854775807, 9223372036854775807),
        ("int", "-9223372036854775808", -9223372036854775808),
        ("int", 12345678901234567890, NACK),
        ("int", 1e18, 10**18),
        ("int", 1e19, NACK),
        ("int", -0.0, 0),
        ("int", "9" * 5000, NACK),
        ("float", "1e400", NACK),
        ("float", "nan", NACK),
        ("float", "Infinity", NACK),
        ("float", " 1", NACK),
        ("float", "", NACK),
        ("float", "0x1p-2", 0.25),
        ("float", "0x10", NACK),
        ("float", "0x1p99999", NACK),
        ("float", ".5", 0.5),
        ("float", "\uff11", NACK),
        ("float", True, 1.0),
        ("float", None, NACK),
        ("float", [1], NACK),
        ("float", 10**400, NACK),
        ("bool", "T", True),
        ("bool", "tRUE", NACK),
        ("bool", 1.0, True),
        ("bool", [], NACK),
        ("string", 12345678901234567890, "12345678901234567890"),
        ("string", 1e-7, "0.0000001"),
        ("string", -0.0, "-0"),
        ("string", False, "false"),
        ("string", None, "<nil>"),
        ("time", "2026-02-29T00:00:00Z", NACK),
        ("time", "2024-02-29T00:00:00+00:00", "2024-02-29T00:00:00Z"),
        ("time", "2026-01-02T03:04:05.1230000000009Z", "2026-01-02T03:04:05.123Z"),
        ("time", "2026-01-02T3:04:05.50+02:00", "2026-01-02T03:04:05.5+02:00"),
        ("time", "2026-01-02T003:04:05Z", NACK),
        ("time", "2026-01-02T24:00:00Z", NACK),
        ("time", "2026-01-02T03:04:05+24:00", NACK),
        ("time", "2026-01-02T03:04:05-23:59", "2026-01-02T03:04:05-23:59"),
        ("time", "2026-01-02T23:59:60Z", NACK),
        ("time", "2026-01-02T03:04:05", NACK),
        ("time", "2026-01-02t03:04:05z", NACK),
        ("time", -1, "1969-12-31T23:59:59.999999999Z"),
        ("time", "1700000000000000000", "2023-11-14T22:13:20Z"),
        ("time", 10**30, NACK),
        ("time", True, NACK),
    ],
)
def test_converts(run: Run, field: str, kind: str, value: Any, expected: Any) -> None:
    """By Go's rules, on the fast path as on the slow one; a value that does not fit is nacked and quoted."""
    payload = {"v": value, "o": {"v": value}}
    [result] = run("field.convert", {"field": field, "type": kind}, payload)
    if expected is NACK:
        assert result.code == "field.convert.invalid"
        assert field in result.message
        return
    converted = result["v"] if field.endswith("After.v") else result["o"]["v"]
    assert (converted, type(converted)) == (expected, type(expected))


def test_a_missing_field_is_converted_like_null(run: Run) -> None:
    """As in Conduit: a nack, or ``<nil>`` as a string."""
    field = {"field": ".Payload.After.v"}
    assert run("field.convert", {**field, "type": "string"}, {}) == [{"v": "<nil>"}]
    assert isinstance(run("field.convert", {**field, "type": "int"}, {})[0], Nack)


def test_whole_payloads(run: Run) -> None:
    """Raw data is read as text; a payload can't become a number."""
    whole = {"field": ".Payload.After"}
    assert run("field.convert", {**whole, "type": "string"}, b"x", {"a": 1}) == [b"x", b"map[a:1]"]
    assert run("field.convert", {**whole, "type": "int"}, b"12")[0].code == "field.unsuitable"


def test_a_long_value_is_shown_in_part(run: Run) -> None:
    """A nack's message stays short."""
    [nack] = run("field.convert", {"field": ".Payload.After.v", "type": "int"}, {"v": "x" * 10_000})
    assert len(nack.message) < 150


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_survive_text(value: int) -> None:
    """An integer, its text and its text converted are one number."""
    assert to_int(to_string(value)) == to_int(value) == value
    assert json.loads(f'"{to_time(value)}"')


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_text(value: float) -> None:
    """A float's text holds neither an exponent nor a loss."""
    text = to_string(value)
    assert "e" not in text
    assert to_float(text) == value


@given(st.text() | st.integers() | st.floats() | st.none() | st.lists(st.integers()))
def test_a_float_is_finite(value: Any) -> None:
    """JSON has neither NaN nor infinity."""
    try:
        assert math.isfinite(to_float(value))
    except (ValueError, OverflowError):
        pass


@pytest.mark.parametrize(
    "settings",
    [
        {"field": ".Metadata.a", "type": "int"},
        {"field": ".Operation", "type": "int"},
        {"field": ".Payload.After.a", "type": "integer"},
        {"field": ".Payload.After.a"},
    ],
)
def test_bad_settings(settings: dict[str, str]) -> None:
    """A field without data and an unknown type are found by validation."""
    with pytest.raises(ValidationError):
        FieldConvertSettings.model_validate(settings)
