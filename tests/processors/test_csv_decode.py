"""``csv.decode``."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import make
from pydantic import ValidationError

from conduit_dagster.processors.common.csv_columns import columns_of
from conduit_dagster.record import Record, copy, encode
from conduit_dagster.sdk import DROP, Nack

Run = Callable[..., list[Any]]
TYPED = {"columns": "id:int, name, amount:float, paid:bool"}


def decode(settings: dict[str, str], header: str, *lines: Any) -> list[Any]:
    """The results for lines of a file with a header: a payload, ``DROP``, or a ``Nack``."""
    records = [Record(i, {"file.header": header}, line) for i, line in enumerate(lines)]
    results = make("csv.decode", settings).process_block(records)
    return [result.after if isinstance(result, Record) else result for result in results]


@pytest.mark.parametrize(
    ("line", "after"),
    [
        (b"1,Ana,2.5,true", {"id": 1, "name": "Ana", "amount": 2.5, "paid": True}),
        (b'1,"Ana, Zagreb",2.5,f\r', {"id": 1, "name": "Ana, Zagreb", "amount": 2.5, "paid": False}),
        (b'1,"the ""great""",.5,T', {"id": 1, "name": 'the "great"', "amount": 0.5, "paid": True}),
        (b'"1","Ana","2.5","0"', {"id": 1, "name": "Ana", "amount": 2.5, "paid": False}),
        (b",,,", {"id": None, "name": None, "amount": None, "paid": None}),
        (b',"",,', {"id": None, "name": None, "amount": None, "paid": None}),
        (b"-007, x ,1e3,1", {"id": -7, "name": " x ", "amount": 1000.0, "paid": True}),
        (b"123456789012345678901234567890,x,-0.1,1", {"id": 123456789012345678901234567890, "name": "x",
                                                       "amount": -0.1, "paid": True}),
        ("1,\u0141\u00f3d\u017a,2,1".encode(), {"id": 1, "name": "\u0141\u00f3d\u017a", "amount": 2.0, "paid": True}),
        (b"\xef\xbb\xbf1,x,2,1", {"id": 1, "name": "x", "amount": 2.0, "paid": True}),
        (b"\xef\xbb\xbf\"1\",x,2,1", {"id": 1, "name": "x", "amount": 2.0, "paid": True}),
        (b'1,"a\rb",2,1', {"id": 1, "name": "a\rb", "amount": 2.0, "paid": True}),
        ({"a": 1}, {"a": 1}),
        (None, None),
        (b"", DROP),
        (b"\r", DROP),
    ],
)  # fmt: skip
def test_a_line_becomes_a_document(run: Run, line: Any, after: Any) -> None:
    [result] = run("csv.decode", TYPED, line)
    assert result == after
    if isinstance(after, dict):
        assert list(result) == list(after)
        assert [type(value) for value in result.values()] == [type(value) for value in after.values()]


BAD = {
    "fields": [b"1,Ana,2.5", b"1,Ana,2.5,1,", b"   ", b"1;Ana;2.5;1", b"\t"],
    "type": [b"x,Ana,2.5,1", b" 1,Ana,2.5,1", b"1_0,Ana,2.5,1", b"1.0,Ana,2.5,1", "١,Ana,2.5,1".encode(),  # noqa: RUF001
             b"1,Ana,x,1", b"1,Ana,nan,1", b"1,Ana,inf,1", b"1,Ana, 1,1", b"1,Ana,1_0,1", b"1,Ana,0x1p3,1",
             b"1,Ana,2.5,yes", b"1,Ana,1e400,1", b"1,Ana,1e-400,1", b"1,Ana,1e-99999999999999999999,1",
             b"1,Ana,12345678901234.567,1", b"1,Ana,1,2", b"1" * 5000 + b",Ana,1,1"],
    "invalid": [b'1,"Ana', b'1,5" pipe,2,1', b'1,x",2,1', b'1,Ana "the, great",2', b'1, "Ana",2.5,1',
                b'1,"Ana\r', b'1,"Ana"s,2.5,1', b"1,Ana\r2,Bo", b"\xff,Ana,2.5,1",
                "1,a,1,1".encode("utf-16")],
    "header": [b"id,name,amount,paid"],
}  # fmt: skip


@pytest.mark.parametrize(("part", "line"), [(part, line) for part, lines in BAD.items() for line in lines])
def test_a_line_that_does_not_fit_is_a_nack(run: Run, part: str, line: bytes) -> None:
    """With a short reason; its neighbours are decoded."""
    good = {"id": 1, "name": "a", "amount": 1.5, "paid": None}
    before, nack, after = run("csv.decode", TYPED, b"1,a,1.5,", line, b"1,a,1.5,")
    assert before == after == good
    assert (type(nack), nack.code) == (Nack, f"csv.decode.{part}")
    assert nack.message.startswith(".Payload.After ") and len(nack.message) < 400


def test_reasons(run: Run) -> None:
    """The number of fields, with the expected one; and the fix if a line alone is not enough."""
    short, open_quote, old_mac, utf = run("csv.decode", TYPED, b"1,Ana,2", b'1,"Ana', b"1,a\r2,b", b"1,\xff,2,1")
    assert short.message == (
        ".Payload.After has 3 fields, not 4 (id, name, amount, paid); the line begins with '1,Ana,2'"
    )
    assert (
        "cannot be read line by line; read such a file with the source spark:csv and multiLine: true"
        in open_quote.message
    )
    assert "lines must end with LF or CRLF" in old_mac.message
    assert "not UTF-8 (invalid start byte at byte 2)" in utf.message


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0.0), ("0.00", 0.0), ("0e5", 0.0), ("0." + "0" * 30, 0.0), ("0.1", 0.1), ("5.", 5.0), ("+.5", 0.5),
     ("0.10000000000000001", 0.1), ("0.1000000000000000055511151231257827", 0.1), ("4.9e-324", 5e-324),
     ("1.7976931348623157e308", 1.7976931348623157e308), ("100000000000000000000", 1e20), ("-1E2", -100.0)],
)  # fmt: skip
def test_a_float_that_keeps_its_digits(run: Run, text: str, value: float) -> None:
    """Also one written by a program with more digits than needed."""
    assert run("csv.decode", {"columns": "a:float"}, text.encode()) == [{"a": value}]


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["r", ".17g", ".16e", ".25e"]))
def test_every_float_comes_back(value: float, form: str) -> None:
    text = repr(value) if form == "r" else format(value, form)
    record = Record("1", {}, text.encode())
    make("csv.decode", {"columns": "a:float"}).process_block([record])
    assert record.after == {"a": value}


def test_a_header_names_the_columns() -> None:
    """In any order; the setting's columns have types, the others are text."""
    columns = {"columns": "amount:float, id:int"}
    assert decode(columns, "id,name,amount", b"1,07,2.5") == [{"id": 1, "name": "07", "amount": 2.5}]
    assert decode(columns, "amount,id", b"2.5,1") == [{"amount": 2.5, "id": 1}]
    assert decode({}, '"a ""b""",c\r', b"1,") == [{'a "b"': "1", "c": None}]
    assert decode({}, "only", b"only", b"x") == [{"only": "only"}, {"only": "x"}]


@pytest.mark.parametrize(
    ("columns", "header", "reason"),
    [
        ("", "", "has no columns: set header: true at the file source"),
        ("", "a,b,a", "names a column twice: 'a'"),
        ("amount:float", "id,sum", "has no column 'amount', but id, sum"),
        ("", 'a,"b', "whose header ends within quotes"),
        ("", "a,gr\ufffd\ufffde", "whose header is not UTF-8"),
    ],
)
def test_a_header_that_does_not_do(columns: str, header: str, reason: str) -> None:
    """All lines of that file are nacked."""
    settings = {"columns": columns} if columns else {}
    for nack in decode(settings, header, b"1,2", b"3,4"):
        assert nack.code == "csv.decode.header" and reason in nack.message


def test_files_with_other_headers_in_one_block() -> None:
    records = [Record(0, {"file.header": "a,b"}, b"1,2"), Record(1, {"file.header": "b,a"}, b"1,2")]
    make("csv.decode", {}).process_block(records)
    assert [record.after for record in records] == [{"a": "1", "b": "2"}, {"b": "1", "a": "2"}]


def test_the_names_again_are_a_nack_and_never_lost(run: Run) -> None:
    """A header that was not skipped, or that of a second file in one; a name alone may well be a value."""
    [nack] = decode({}, "a,b", b"a,b")
    assert "set header: true at the file source" in nack.message
    assert run("csv.decode", {"columns": "a"}, b"a") == [{"a": "a"}]


@pytest.mark.parametrize(
    ("settings", "line", "after"),
    [
        ({"delimiter": ";"}, b"1;x,y", {"a": "1", "b": "x,y"}),
        ({}, b"\xef\xbb\xbf1,x", {"a": "1", "b": "x"}),
        ({}, b"1,\xef\xbb\xbfx", {"a": "1", "b": "\ufeffx"}),
        ({"delimiter": "\\t"}, b"1\tx", {"a": "1", "b": "x"}),
        ({"delimiter": "\t"}, b"1\tx", {"a": "1", "b": "x"}),
        ({"delimiter": "¦"}, "1¦x".encode(), {"a": "1", "b": "x"}),
        ({"quote": "'"}, b"1,'x, \"y\"'", {"a": "1", "b": 'x, "y"'}),
        ({"quote": ""}, b'"1,x"', {"a": '"1', "b": 'x"'}),
        ({"quote": ""}, b'1,5" pipe', {"a": "1", "b": '5" pipe'}),
        ({"trim": "true"}, b'1, "the ""x"" "', {"a": "1", "b": 'the "x"'}),
        ({"trim": "true"}, b' 1 , "x, y"', {"a": "1", "b": "x, y"}),
        ({"trim": "true"}, b" \t", DROP),
        ({"trim": "true", "columns": "a"}, b" ", DROP),
        ({"columns": "a"}, b" ", {"a": " "}),
        ({"nulls": "NULL"}, b",NULL", {"a": "", "b": None}),
        ({"nulls": r"\N"}, rb"\N,", {"a": None, "b": ""}),
    ],
)
def test_dialects(run: Run, settings: dict[str, str], line: bytes, after: Any) -> None:
    assert run("csv.decode", {"columns": "a, b", **settings}, line) == [after]


def test_a_field_of_a_document_the_key_and_the_payload_before(run: Run, processor: Callable[..., Any]) -> None:
    """There a blank line is null; text with line ends inside quotes is complete there."""
    settings = {"columns": "a, b", "field": ".Payload.After.line"}
    assert run("csv.decode", settings, {"line": '1,"x\ny"'}, {"line": ""}, {"line": None}, {}) == [
        {"line": {"a": "1", "b": "x\ny"}}, {"line": None}, {"line": None}, {}
    ]  # fmt: skip
    number, raw = run("csv.decode", settings, {"line": 5}, b"1,2")
    assert (number.code, raw.code) == ("csv.decode.invalid", "field.unresolved")
    subject = Record(1, {}, b"raw", key=b"1,2", before=b"")
    for field in (".Key", ".Payload.Before"):
        decoder = processor("csv.decode", {"columns": "a, b", "field": field})
        assert decoder.reads_key is (field == ".Key")
        decoder.process_block([subject])
    assert (subject.key, subject.before, subject.after) == ({"a": "1", "b": "2"}, None, b"raw")


def test_the_list_of_columns() -> None:
    assert columns_of(' id:int, name,\n "last, first:string", "a:b: int","q ""x"""') == {
        "id": "int", "name": "string", "last, first": "string", "a:b": "int", 'q "x"': "string",
    }  # fmt: skip
    assert columns_of("") == {}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"columns": "id:int, id"}, "listed twice"),
        ({"columns": "id:flaot"}, "no type flaot"),
        ({"columns": "id,,b"}, "no name"),
        ({"columns": "id,"}, "no name"),
        ({"columns": ":int"}, "no name"),
        ({"columns": '"id'}, "not valid CSV"),
        ({"delimiter": ";;"}, "not one character"),
        ({"delimiter": ""}, "not one character"),
        ({"delimiter": "\n"}, "not one character"),
        ({"delimiter": '"'}, "both"),
        ({"quote": "''"}, "not one character"),
        ({"delimiter": " ", "trim": "true"}, "blanks cannot be removed"),
        ({"field": ".Metadata.a"}, "holds no data"),
        ({"field": ".Position"}, "holds no data"),
    ],
)
def test_bad_settings(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        make("csv.decode", settings)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"), max_size=8)
ROWS = st.integers(1, 5).flatmap(lambda width: st.lists(st.lists(TEXT, min_size=width, max_size=width), min_size=1))
DIALECTS = st.tuples(
    st.sampled_from(",;\t|"), st.sampled_from("\"'"), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
)


def written(rows: Sequence[Sequence[str]], dialect: tuple[str, str, int], end: str) -> list[bytes]:
    delimiter, quote, quoting = dialect
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, quotechar=quote, quoting=quoting, lineterminator="\n").writerows(rows)  # type: ignore[arg-type]
    return [(line + end).encode() for line in file.getvalue().split("\n")[:-1]]


@given(ROWS, DIALECTS, st.sampled_from(["", "\r"]), st.sampled_from(["", "\\N", "x"]))
def test_what_pythons_writer_writes_comes_back(
    rows: list[list[str]], dialect: tuple[str, str, int], end: str, nulls: str
) -> None:
    """For any characters and quotes; the names of the columns come like a header's."""
    names = [f"c{i}" for i in range(len(rows[0]))]
    lines = written([names, *rows], dialect, end)
    settings = {"delimiter": dialect[0], "quote": dialect[1], "nulls": nulls}
    results = decode(settings, lines[0].decode(), *lines[1:])
    wanted = [{n: None if v == nulls else v for n, v in zip(names, row, strict=True)} for row in rows]
    assert results == [
        nack_or(result, row, names, document) for result, row, document in zip(results, rows, wanted, strict=True)
    ]


def nack_or(result: Any, row: list[str], names: list[str], document: Any) -> Any:
    """The document, unless the row repeats the names."""
    return result if row == names and len(names) > 1 else document


PIECES = st.sampled_from(['"', ",", "a", "1", "\r", "\n", " ", "é", "\ufeff", "x,y", "1,2", "\0", "1.5"])
LINES = st.lists(PIECES, max_size=6).map(lambda pieces: "".join(pieces).encode()) | st.sampled_from(
    [b"1,2", b"\xff", b"a,b", None, {"a": 1}]
)


@given(
    st.lists(LINES, max_size=230), st.sampled_from(["a", "a,b", "a:int,b", "a:int,b:float", "a:bool, b"]), st.booleans()
)
def test_a_block_becomes_what_each_record_becomes_alone(lines: list[Any], columns: str, trim: bool) -> None:
    """Lines are decoded together if that works for all; no input fails a block, and every result is JSON."""
    subject = make("csv.decode", {"columns": columns, "trim": str(trim)})
    together = [Record(i, {}, copy(Record(0, {}, line)).after) for i, line in enumerate([*lines, b"1,2"])]
    alone = [copy(record) for record in together]
    results = list(subject.process_block(together))
    assert results == [subject.process_block([record])[0] for record in alone]
    assert together == alone
    for result in results:
        if isinstance(result, Record):
            encode(result)
