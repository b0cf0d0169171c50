"""``base64.decode`` and ``base64.encode``."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import check_loop, make
from pydantic import ValidationError

from conduit_dagster.record import Record
from conduit_dagster.sdk import Nack

Run = Callable[..., list[Any]]
FIELD = {"field": ".Payload.After.v"}
WHOLE = {"field": ".Payload.After"}


@pytest.mark.parametrize("case", ["base64-decode", "base64-encode"])
def test_golden(golden: Callable[[str], None], case: str) -> None:
    golden(case)


@given(st.binary())
def test_a_whole_payload_comes_back(data: bytes) -> None:
    record = Record("1", {}, data)
    make("base64.encode", WHOLE).process_block([record])
    assert record.after == base64.b64encode(data)
    make("base64.decode", WHOLE).process_block([record])
    assert record.after == data


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_text_comes_back(text: str) -> None:
    record = Record("1", {}, {"v": text})
    make("base64.encode", FIELD).process_block([record])
    make("base64.decode", FIELD).process_block([record])
    assert record.after == {"v": text}


ODD = [
    None,
    True,
    5,
    2**70,
    1.5,
    "",
    "a",
    "é",
    "\ud800",
    "YQ==",
    "YQ\r\n==",
    "YQ",
    "YQ==YQ==",
    "/w==",
    "YWJj=",
    "YWJj====",
    [1],
    {"a": 1},
]


@given(st.sampled_from(["base64.encode", "base64.decode"]), st.lists(st.sampled_from(ODD)), st.booleans())
def test_a_block_becomes_what_each_record_becomes_alone(name: str, values: list[Any], gap: bool) -> None:
    documents: list[Any] = [{"v": value} for value in values] + [{}, b"raw", None] * gap + [{"v": "YQ=="}]
    check_loop(name, FIELD, [Record(i, {}, document) for i, document in enumerate(documents)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (1.5, "1.5"),
        (1234567.5, "1.2345675e+06"),
        (1e-05, "1e-05"),
        (2**70, str(2**70)),
        (True, "true"),
        (False, "false"),
        ("", ""),
    ],
)
def test_numbers_and_booleans_by_their_text(run: Run, value: Any, text: str) -> None:
    assert run("base64.encode", FIELD, {"v": value}) == [{"v": base64.b64encode(text.encode()).decode()}]


@pytest.mark.parametrize("value", [{"a": 1}, [1], "\ud800"])
def test_what_is_no_text_is_not_encoded(run: Run, value: Any) -> None:
    good, nack = run("base64.encode", FIELD, {"v": "a"}, {"v": value})
    assert good == {"v": "YQ=="} and isinstance(nack, Nack) and nack.code == "base64.encode.invalid"


@pytest.mark.parametrize("value", [5, True, [1], {"a": 1}, "!!", "YQ", "YQ=", "YQ==YQ==", "Y Q==",
                                   "YWJj=", "YWJj====", "é", "/w=="])  # fmt: skip
def test_what_is_none_is_not_decoded(run: Run, value: Any) -> None:
    """The last one is not UTF-8: a document can't hold it."""
    nack, good = run("base64.decode", FIELD, {"v": value}, {"v": "YQ=="})
    assert good == {"v": "a"} and isinstance(nack, Nack) and nack.code == "base64.decode.invalid"


def test_line_breaks_are_ignored_and_bytes_are_bytes(run: Run) -> None:
    assert run("base64.decode", FIELD, {"v": "Y\r\nQ=\n="}) == [{"v": "a"}]
    assert run("base64.decode", WHOLE, b"/w==") == [b"\xff"]


@pytest.mark.parametrize("name", ["base64.decode", "base64.encode"])
def test_missing_and_null_stay(run: Run, name: str) -> None:
    assert run(name, FIELD, {}, {"v": None}, None) == [{}, {"v": None}, {}]
    assert run(name, WHOLE, None) == [None]


@pytest.mark.parametrize("name", ["base64.decode", "base64.encode"])
def test_a_position_is_refused_and_metadata_is_not(name: str) -> None:
    with pytest.raises(ValidationError, match="Position cannot be changed"):
        make(name, {"field": ".Position"})
    record = Record("1", {"m": "YQ=="})
    make("base64.decode", {"field": ".Metadata.m"}).process_block([record])
    assert record.metadata == {"m": "a"}
