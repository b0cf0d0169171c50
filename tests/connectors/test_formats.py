"""How destinations write records as lines (the oracle of ``debezium/json`` is golden/format-debezium)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_dagster.connectors.formats import Format, PayloadAsJson, Template, make_format, names
from conduit_dagster.expressions import Clock, compile_template
from conduit_dagster.processors.unwrap_debezium import UnwrapDebezium, UnwrapDebeziumSettings
from conduit_dagster.record import OPERATIONS, Record, decode, encode
from conduit_dagster.sdk import ProcessorContext

TO_JSON = "{{ toJson .Payload.After }}"
GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
SHARED = {"opencdc.collection": "orders"}


def records(*payloads: Any) -> list[Record]:
    return [Record(i, SHARED, payload, str(i).encode()) for i, payload in enumerate(payloads)]


def all_formats() -> list[Format]:
    return [
        make_format("opencdc/json"),
        make_format("payload/json"),
        make_format("template", TO_JSON),
        make_format("template", "{{ .Payload.After }}"),
    ]


def test_opencdc_json_is_conduits_layout() -> None:
    """Position and raw data as base64, a document as an object, the fields in Conduit's order."""
    record = Record(124, {"file.path": "./in.jsonl"}, {"b": 1, "a": None}, b"1")
    lines, refused = make_format("opencdc/json").encode_block([record])
    assert refused == []
    assert lines == (
        b'{"position":"MTI0","operation":"create","metadata":{"file.path":"./in.jsonl"},"key":"MQ==",'
        b'"payload":{"before":null,"after":{"b":1,"a":null}}}\n'
    )


@pytest.mark.parametrize("case", ["passthrough-raw", "passthrough-raw-odd-lines", "format-template-sprig"])
def test_golden(case: str) -> None:
    """The output equals Conduit's."""
    if not (GOLDEN / case).is_dir():
        pytest.skip(f"no golden cases at {GOLDEN}")
    pipeline = json.loads((GOLDEN / case / "pipeline.yaml").read_text())["pipelines"][0]
    settings = pipeline["connectors"][1]["settings"]
    name = settings.get("sdk.record.format", "opencdc/json")
    made = make_format(name, settings.get("sdk.record.format.options", ""))
    lines, refused = made.encode_block(list(_read(GOLDEN / case / "in.jsonl", decoded=name == "template")))
    expected = (GOLDEN / case / "expected-out.jsonl").read_bytes()
    assert refused == []
    assert _values(lines, name) == _values(expected, name)


def _values(lines: bytes, name: str) -> list[Any]:
    return [line if name == "template" else json.loads(line) for line in lines.split(b"\n")[:-1]]


def _read(path: Path, *, decoded: bool) -> Iterator[Record]:
    metadata = {
        "conduit.source.connector.id": "golden:in",
        "file.path": "./in.jsonl",
        "opencdc.readAt": "TIME",
    }
    position = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        position += len(line)
        yield Record(position, metadata, json.loads(line) if decoded else line[:-1], str(number).encode())


PAYLOAD = st.none() | st.binary() | st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.none()))
RECORD = st.builds(
    Record,
    st.integers() | st.text(),
    st.just(SHARED) | st.dictionaries(st.text(), st.text()),
    PAYLOAD,
    PAYLOAD,
    PAYLOAD,
    st.sampled_from(["create", "update", "delete", "snapshot"]),
)


@given(st.lists(RECORD))
def test_opencdc_json_equals_the_records_own_layout(block: list[Record]) -> None:
    """One line for each record as written by ``record.encode``, metadata shared or not; it can be read back."""
    lines, refused = make_format("opencdc/json").encode_block(block)
    assert refused == []
    split = lines.split(b"\n")[:-1]
    assert split == [encode(record) for record in block]
    assert [decode(line).after for line in split] == [record.after for record in block]


@given(st.lists(RECORD))
def test_the_fast_template_equals_the_slow_one(block: list[Record]) -> None:
    """``{{ toJson … }}`` of the payload or the record means the same compiled and by its fast way."""
    for text in (TO_JSON, "{{ toJson . }}", "{{- toJson .Payload.After -}}"):
        compiled = compile_template(text)
        fast = make_format("template", text)
        assert not isinstance(fast, Template)
        values = [json.loads(line) for line in fast.encode_block(block)[0].split(b"\n")[:-1]]
        assert values == [json.loads(compiled(record)) for record in block]


def test_payload_json() -> None:
    """A document is one line, raw data is itself, no payload is null; several raw lines are refused."""
    lines, refused = make_format("payload/json").encode_block(
        records({"a": 12345678901234567890}, b"raw", None, b"two\nlines", b"", b"cr\r")
    )
    assert lines == b'{"a":12345678901234567890}\nraw\nnull\n\ncr\r\n'
    assert [(index, nack.code) for index, nack in refused] == [(3, "format.refused")]


def test_template_writes_what_it_gives() -> None:
    """Go prints a missing field as ``<no value>``; a line feed in the output is written as it is."""
    made = make_format("template", "{{ .Payload.After.a }}|x")
    lines, refused = made.encode_block(records({"a": "one\ntwo"}, {"a": 2}, {}))
    assert (lines, refused) == (b"one\ntwo|x\n2|x\n<no value>|x\n", [])


def test_a_template_that_fails_refuses_its_record() -> None:
    """The others are written, in order."""
    lines, refused = make_format("template", "{{ len .Payload.After.a }}").encode_block(
        records({"a": "xy"}, {"a": 1}, {"a": [1]})
    )
    assert lines == b"2\n1\n"
    assert [index for index, _ in refused] == [1]


@pytest.mark.parametrize("made", all_formats(), ids=lambda made: type(made).__name__)
def test_a_record_that_cannot_be_encoded_is_refused_alone(made: Format) -> None:
    """Lone surrogates, integers too long to write, nesting too deep: the block does not raise."""
    deep: Any = {}  # Python 3.14 takes as many levels as a stack of 8 MB has room for, some 80,000
    for _ in range(200_000):
        deep = {"d": deep}
    block = records({"a": 1}, {"a": "\ud800"}, {"a": 2}, {"a": 10**5000}, {"a": deep}, {"a": 3})
    lines, refused = made.encode_block(block)
    assert lines.count(b"\n") == 3
    assert [index for index, _ in refused] == [1, 3, 4]
    assert all(nack.code.startswith("format.") and nack.message for _, nack in refused)


def test_an_empty_block_is_no_bytes() -> None:
    """Nor a line end."""
    assert [made.encode_block([]) for made in all_formats()] == [(b"", [])] * 4


def test_reads_key() -> None:
    """Only a format that writes the key or the position needs them."""
    assert make_format("opencdc/json").reads_key is True
    assert make_format("payload/json").reads_key is False
    assert make_format("template", TO_JSON).reads_key is False
    assert make_format("template", "{{ .Payload.After.a }}").reads_key is False
    assert make_format("template", '{{ printf "%s" .Key }}').reads_key is True
    assert make_format("template", "{{ toJson . }}").reads_key is True


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("opencdc-json", "", "did you mean opencdc/json"),
        ("xml", "", "known are opencdc/json, payload/json, debezium/json, template"),
        ("template", "", "sdk.record.format.options"),
        ("template", "{{ nope . }}", "nope"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is(name: str, options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("/", ".")):
        make_format(name, options)
    assert name == "template" or name not in names()


def test_the_common_template_takes_the_fast_way() -> None:
    """Whatever white space it contains."""
    assert isinstance(make_format("template", "{{toJson   .Payload.After}}"), PayloadAsJson)


def written(record: Record, options: str = "") -> Any:
    """The line of one record."""
    lines, refused = make_format("debezium/json", options).encode_block([record])
    assert not refused
    return json.loads(lines)


def schemas(envelope: Any) -> dict[str, Any]:
    """By field."""
    return {field["field"]: field for field in envelope["schema"]["fields"]}


def test_of_one_payload_both_have_the_schema() -> None:
    for record in (Record("1", {}, {"a": 1}), Record("1", {}, None, None, {"a": 1}, "delete")):
        found = schemas(written(record))
        fields = [{"type": "double", "field": "a"}]
        assert [found[name]["fields"] for name in ("before", "after")] == [fields, fields]
    assert "fields" not in schemas(written(Record("1", {})))["after"]


def test_types() -> None:
    after = {"s": "x", "i": 1, "f": 1.5, "b": True, "n": None, "l": [[1]], "e": [], "d": {"x": {}}}
    found = {field["field"]: field for field in schemas(written(Record("1", {}, after)))["after"]["fields"]}
    assert {name: found[name]["type"] for name in after} == {
        "s": "string", "i": "double", "f": "double", "b": "boolean", "n": "string", "l": "array", "e": "array",
        "d": "struct",
    }  # fmt: skip
    assert found["l"]["items"] == {"type": "array", "optional": True, "items": {"type": "double"}}
    assert found["e"]["items"] == {"type": "string", "optional": True}
    assert found["d"]["fields"] == [{"type": "struct", "optional": True, "field": "x"}]


def test_raw_data_is_json_or_a_field() -> None:
    assert written(Record("1", {}, b'{"a": 1}'))["payload"]["after"] == {"a": 1}
    envelope = written(Record("1", {}, b"raw"))
    assert envelope["payload"]["after"] == {"opencdc.rawData": "cmF3"}
    assert schemas(envelope)["after"]["fields"] == [{"type": "bytes", "optional": True, "field": "opencdc.rawData"}]
    assert written(Record("1", {}, b"[1]"), "debezium.rawData.key=k")["payload"]["after"] == {"k": "WzFd"}
    assert written(Record("1", {}, b""))["payload"]["after"] is None


@pytest.mark.parametrize(
    ("raw", "after"), [(b"null", None), (b'{"a": "\\ud83d"}', {"a": "\ufffd"}), (b'{"a": "\n"}', {"a": "\n"})]
)
def test_raw_data_is_read_as_json_decode_reads_it(raw: bytes, after: Any) -> None:
    """What Conduit 0.14 writes; it was raw data in a field."""
    assert written(Record("1", {}, raw))["payload"]["after"] == after


def test_time_and_name() -> None:
    assert written(Record("1", {"opencdc.readAt": "5123456"}))["payload"]["ts_ms"] == 5
    assert written(Record("1", {"opencdc.readAt": "-5123456"}))["payload"]["ts_ms"] == -6
    for text in ("soon", "0", "9" * 23, "1" * 5000, "²"):
        assert "ts_ms" not in written(Record("1", {"opencdc.readAt": text}))["payload"]
    assert written(Record("1", {}), " debezium.schema.name=orders")["schema"]["name"] == "orders"
    assert "name" not in written(Record("1", {}))["schema"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_it_can_be_unwrapped_again(operation: str) -> None:
    record = Record("1", {"m": "x"}, {"a": [1, None]}, {"k": 1}, {"b": {}}, operation)
    wrapped = Record("1", {}, json.dumps(written(record)).encode(), {"k": 1})
    subject = UnwrapDebezium(UnwrapDebeziumSettings(), ProcessorContext("p", "p:x", Clock(0)))
    assert subject.process_block([wrapped]) == [record]


def test_another_option_is_refused() -> None:
    with pytest.raises(ValueError, match="no option 'schema'"):
        make_format("debezium/json", "schema=x")
