"""Copies of documents."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_dagster.record import copy_data, copy_document

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)
DOCUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=6)
DEEP = 5000
"""More levels than Python's recursion limit."""


class Text(str):
    __slots__ = ()


def containers(value: Any) -> list[int]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [id(value)] if isinstance(value, dict | list) else []
    return own + [place for one in inner for place in containers(one)]


def classes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: classes(inner) for name, inner in value.items()}
    return list(map(classes, value)) if isinstance(value, list) else (type(value), repr(value))


@given(DOCUMENTS)
def test_a_copy_has_the_same_values_and_shares_no_dict_or_list(document: dict[str, Any]) -> None:
    before = classes(document)
    made = copy_document(document)
    assert classes(made) == before == classes(document)
    assert list(made) == list(document), "in the same order"
    assert not set(containers(made)) & set(containers(document))


@pytest.mark.parametrize("value", [Text("a"), Decimal("1.50"), datetime(2026, 12, 1, tzinfo=UTC), object(), (2,)])
def test_a_copy_keeps_values_that_are_not_copied(value: Any) -> None:
    document = {"list": [value], "one": value}
    made = copy_document(document)
    assert made == document
    assert type(made["one"]) is type(value)
    assert made["list"] is not document["list"]


def test_a_copy_of_many_levels() -> None:
    document: dict[str, Any] = {}
    inner = document
    for _ in range(DEEP):
        inner["a"] = [{}]
        inner = inner["a"][0]
    made: Any = copy_data(document)
    document["b"] = 1
    levels = 0
    while "a" in made:
        made = made["a"][0]
        levels += 1
    assert (levels, made) == (DEEP, {})


@pytest.mark.parametrize("raw", [b"raw", None])
def test_raw_data_is_no_document(raw: bytes | None) -> None:
    assert copy_data(raw) is raw
