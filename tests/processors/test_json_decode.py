"""``json.decode``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from conduit_dagster.expressions import Clock
from conduit_dagster.processors.json_decode import JsonDecode, JsonDecodeSettings
from conduit_dagster.record import Record, encode
from conduit_dagster.sdk import Nack, ProcessorContext

Run = Callable[..., list[Any]]
WHOLE = {"field": ".Payload.After"}


@pytest.mark.parametrize("case", ["json-decode", "json-decode-not-json", "json-decode-other-field"])
def test_golden(golden: Callable[[str], None], case: str) -> None:
    """The output equals Conduit's."""
    golden(case)


@pytest.mark.parametrize(
    ("raw", "after"),
    [
        (b'{"b":1,"a":2}', {"b": 1, "a": 2}),
        (b' {"a" : 12345678901234567890 }\r\n', {"a": 12345678901234567890}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'"text"', b"text"),
        (b"null", None),
        (b"", None),
        ({"a": 1}, {"a": 1}),
        (None, None),
    ],
)
def test_a_payload_becomes_a_document(run: Run, raw: Any, after: Any) -> None:
    """Text becomes raw data, null and nothing become null; a document is left alone."""
    [result] = run("json.decode", WHOLE, raw)
    assert result == after
    if isinstance(after, dict):
        assert list(result) == list(after)


BAD = {
    "text": b"not json",
    "half": b'{"a":',
    "rest": b'{"a":1} x',
    "two": b'{"a":1}{"b":2}',
    "blank": b"   ",
    "mark": b'\xef\xbb\xbf{"a":1}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "no utf-8": b'{"a":"\xff"}',
    "no utf-8 name": b'{"\xff":1}',
    "surrogate bytes": b'{"a":"\xed\xa0\x80"}',
    "nan": b'{"a":NaN}',
    "infinity": b'{"a":1e400}',
    "digits": b'{"a":' + b"1" * 5000 + b"}",
    "brackets": b"[" * 2000,
    "nested": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,  # Python 3.12 and newer take some thousand
    "list": b"[1,2]",
    "number": b"12",
    "boolean": b"true",
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
def test_what_is_no_document_is_a_nack(run: Run, raw: bytes) -> None:
    """The nack has place and reason with a short excerpt, and its neighbours are decoded."""
    before, nack, after = run("json.decode", WHOLE, b'{"a":1}', raw, b'{"b":2}')
    assert (before, after) == ({"a": 1}, {"b": 2})
    assert nack.code == "json.decode.invalid"
    assert nack.message.startswith(".Payload.After is ")
    assert len(nack.message) < 400


def test_reasons(run: Run) -> None:
    """Three pitfalls are named."""
    reasons = [nack.message for nack in run("json.decode", WHOLE, BAD["mark"], BAD["nested"], BAD["no utf-8"])]
    assert "byte-order mark" in reasons[0]
    assert "nested too deeply" in reasons[1]
    assert "not UTF-8" in reasons[2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"d": '{"x":[1,{"y":null}]}'}, {"d": {"x": [1, {"y": None}]}}),
        ({"d": "[1]"}, {"d": [1]}),
        ({"d": "12"}, {"d": 12}),
        ({"d": "true"}, {"d": True}),
        ({"d": '"s"'}, {"d": "s"}),
        ({"d": "null"}, {"d": None}),
        ({"d": ""}, {"d": None}),
        ({"d": None}, {"d": None}),
        ({"d": {"already": 1}}, {"d": {"already": 1}}),
        ({"e": 1}, {"e": 1}),
        (None, {}),
    ],
)
def test_a_field_takes_any_json(run: Run, before: Any, after: Any) -> None:
    """Also a list, a number or a boolean; missing, null and documents stay."""
    assert run("json.decode", {"field": ".Payload.After.d"}, before) == [after]


@pytest.mark.parametrize("value", [1, 1.5, True, [1]])
def test_a_field_without_text_is_a_nack(run: Run, value: Any) -> None:
    """A number or list cannot be decoded, and the nack says so."""
    [nack] = run("json.decode", {"field": ".Payload.After.d"}, {"d": value})
    assert nack.code == "json.decode.invalid"
    assert "not JSON text" in nack.message


def test_key_and_before(processor: Callable[..., Any]) -> None:
    """They are decoded like the payload; only the key's decoding reads the key."""
    subject = Record(1, {}, b"raw", key=b'{"k":1}', before=b'{"b":1}')
    for field in (".Key", ".Payload.Before"):
        decode = processor("json.decode", {"field": field})
        assert decode.reads_key is (field == ".Key")
        decode.process_block([subject])
    assert (subject.key, subject.before, subject.after) == ({"k": 1}, {"b": 1}, b"raw")


@given(st.lists(st.binary() | st.sampled_from(list(BAD.values())) | st.just(b'{"a":1}')))
def test_no_input_ends_a_block(payloads: list[bytes]) -> None:
    """Each record becomes one that can be encoded again, or a nack; the others are not affected."""
    subject = JsonDecode(JsonDecodeSettings(field=".Payload.After"), ProcessorContext("p", "p:x", Clock(0)))
    results = subject.process_block([Record(i, {}, payload) for i, payload in enumerate(payloads)])
    assert len(results) == len(payloads)
    for payload, result in zip(payloads, results, strict=True):
        assert isinstance(result, Nack | Record)
        assert payload != b'{"a":1}' or (isinstance(result, Record) and result.after == {"a": 1})
        if isinstance(result, Record):
            encode(result)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": "x\ty\nz\x00"}', {"a": "x\ty\nz\x00"}),
        (b'{"a": "\\ud800", "b": "\\ud83d\\ude00"}', {"a": "\ufffd", "b": "\U0001f600"}),
        (b'{"a": "\t", "n": 123456789012345678901234567890, "f": 0.1}',
         {"a": "\t", "n": 123456789012345678901234567890, "f": 0.1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", [".Payload.After", ".Payload.After.v"])
def test_as_lenient_as_conduit(run: Callable[..., list[Any]], text: bytes, value: Any, field: str) -> None:
    """Control characters in text need no escape; half a character becomes U+FFFD; numbers stay exact."""
    whole = field == ".Payload.After"
    expected = value if whole else {"v": value}
    assert run("json.decode", {"field": field}, text if whole else {"v": text.decode()}) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        *(b'{"a": "\t", "b": NaN}', b'{"a": "\t"', b'{"a": 01}', b'{"a": 1.}', b'{"a": "\xff\t"}'),
        # a number that the last of two equal keys hides
        *(b'{"a": NaN, "a": "\t"}', b'{"a": -Infinity, "a": "\t"}', b'{"a": 1e400, "a": "\t"}'),
    ],
)
def test_no_more_lenient(run: Callable[..., list[Any]], text: bytes) -> None:
    [nack] = run("json.decode", {"field": ".Payload.After"}, text)
    assert nack.code == "json.decode.invalid"


@given(st.dictionaries(st.text(), JSON))
def test_decoding_gives_back_what_was_encoded(document: dict[str, Any]) -> None:
    """Exact integers, order of keys, nulls and floats included."""
    subject = JsonDecode(JsonDecodeSettings(field=".Payload.After"), ProcessorContext("p", "p:x", Clock(0)))
    record = Record(1, {}, msgspec.json.encode(document))
    subject.process_block([record])
    assert record.after == document
    assert isinstance(record.after, dict)
    assert list(record.after) == list(document)


@pytest.mark.parametrize("field", [".Metadata.a", ".Position", ".Payload.After.", ""])
def test_bad_settings(field: str) -> None:
    """Only the key and the payloads hold JSON."""
    with pytest.raises(ValidationError) as caught:
        JsonDecodeSettings(field=field)
    assert caught.value.errors()[0]["type"] == ("reference" if field else "missing")
