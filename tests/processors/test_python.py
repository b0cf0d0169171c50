"""``python``: functions of modules in the project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import make
from pydantic import ValidationError

from conduit_dagster.processors.python import Python
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import DROP, Nack

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc

from conduit_dagster.sdk import DROP, FatalError, Nack, ProcessError, TransientError

def double(record):
    record.after["n"] *= 2
    return record

def sort(record, context):
    n = record.after["n"]
    if n < 0:
        raise ProcessError(context.node_id, code="mine.negative")
    return DROP if n == 0 else [record] * n

def block(records):
    return [Nack("mine.no", "no") if record.after["n"] == 1 else record for record in records]

def short(records):
    return records[1:]

def columns(table):
    return table.set_column(0, "n", pc.multiply(table["n"], 2))

def rows(table):
    counts = table["n"].to_pylist()
    places = [place for place, n in enumerate(counts) for _ in range(n)]
    column = pa.array(places, pa.int64())
    return table.take(column).append_column("_row", column)

def errors(table):
    return table.append_column("_error", pa.array(["odd" if n % 2 else None for n in table["n"].to_pylist()]))

def wrong_rows(table):
    return table.append_column("_row", pa.array([9] * len(table)))

def joined(table):
    prices = [n * 100 for n in table["n"].to_pylist()]
    if len(table) == 1:
        return pa.table({"n": prices})
    return pa.table({"n": [*prices, 0], "_row": pa.array([*range(len(prices)), None])})

def no_table(table):
    return table.to_pylist()

def same(table):
    return table

def twice(table):
    return pa.concat_tables([table, table]).append_column("_row", pa.array([*range(len(table))] * 2))

def add(table):
    return table.set_column(0, "n", pc.add(table["n"], 0.5))

def fails(table):
    if 1 in table["n"].to_pylist():
        raise ValueError("one")
    return table

def asks(table):
    raise (TransientError if 1 in table["n"].to_pylist() else FatalError)("no", code="mine.no")

def fewer(table):
    return table.slice(1)

value = 5
"""


def run(function: str, *payloads: Any, per: str = "record") -> list[Any]:
    """The results for payloads; for records their payloads."""
    settings = {"function": f"mod:{function}", "module.source": MODULE, "per": per}
    records = [Record(str(i), {"m": "1"}, after) for i, after in enumerate(payloads)]
    return [_after(result) for result in make("python", settings).process_block(records)]


def _after(result: Any) -> Any:
    if isinstance(result, list):
        return [record.after for record in result]
    return result.after if isinstance(result, Record) else result.code if isinstance(result, Nack) else result


def test_per_record() -> None:
    assert run("double", {"n": 1}, {"n": "x"}, b"raw", {"n": 2}) == [
        {"n": 2}, {"n": "xx"}, "processor.error", {"n": 4},
    ]  # fmt: skip
    assert run("sort", {"n": 2}, {"n": 0}, {"n": -1}) == [[{"n": 2}] * 2, DROP, "mine.negative"]


def test_per_block() -> None:
    assert run("block", {"n": 0}, {"n": 1}, per="block") == [{"n": 0}, "mine.no"]
    # the engine reports what is missing; an exception for a whole block is an error of the step
    assert len(run("short", {"n": 0}, {"n": 1}, per="block")) == 1
    with pytest.raises(KeyError):
        run("block", {}, per="block")


NUMBER = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.none()
NESTED = st.lists(NUMBER, max_size=3) | st.dictionaries(st.sampled_from("xy"), NUMBER, max_size=2)


@given(st.lists(st.fixed_dictionaries({"n": NUMBER, "m": NESTED}), min_size=1, max_size=5))
def test_per_arrow_what_is_not_changed_stays_as_it_was(payloads: list[dict[str, Any]]) -> None:
    """In a column, integers beside fractions are fractions, and a document has the fields of all documents."""
    given = [[payload] for payload in payloads]
    assert json.dumps(run("same", *payloads, per="arrow"), sort_keys=True) == json.dumps(given, sort_keys=True)


def test_per_arrow_an_outage_is_no_nack() -> None:
    assert run("asks", {"n": 0}, per="arrow") == ["mine.no"]
    with pytest.raises(TransientError):
        run("asks", {"n": 0}, {"n": 1}, per="arrow")


def test_per_arrow_pieces_share_no_document() -> None:
    [[one, other]] = run("twice", {"m": {"x": [1, 2.5]}}, per="arrow")
    assert repr(one) == repr(other) == repr({"m": {"x": [1, 2.5]}})
    assert one["m"] is not other["m"] and one["m"]["x"] is not other["m"]["x"]


def test_per_arrow_what_is_changed_is_as_the_function_made_it() -> None:
    assert repr(run("add", {"n": 1}, {"n": 2.5}, per="arrow")) == repr([[{"n": 1.5}], [{"n": 3.0}]])
    assert repr(run("columns", {"n": 1}, {"n": 2.5}, per="arrow")) == repr([[{"n": 2.0}], [{"n": 5.0}]])


@given(st.lists(st.integers(0, 4), max_size=20))
def test_per_arrow(numbers: list[int]) -> None:
    payloads = [{"n": n, "t": str(n)} for n in numbers]
    assert run("columns", *payloads, per="arrow") == [[{"n": n * 2, "t": str(n)}] for n in numbers]
    assert run("rows", *payloads, per="arrow") == [[{"n": n, "t": str(n)}] * n for n in numbers]
    assert run("errors", *payloads, per="arrow") == [
        "python.nacked" if n % 2 else [{"n": n, "t": str(n)}] for n in numbers
    ]


def test_one_that_fails_in_a_table_is_nacked_alone() -> None:
    assert run("fails", {"n": 0}, {"n": 1}, {"n": 2}, per="arrow") == [[{"n": 0}], "processor.error", [{"n": 2}]]
    # types that no column can hold together
    assert run("columns", {"n": 1}, {"n": "x"}, {"n": 3}, per="arrow") == [[{"n": 2}], "processor.error", [{"n": 6}]]
    assert run("columns", b"raw", {"n": 1}, None, per="arrow") == ["field.unresolved", [{"n": 2}], "field.unresolved"]


def test_a_wrong_row_at_the_end_changes_no_record_twice() -> None:
    """An outer join gives a row without an original; the records before it went through the function again."""
    assert run("joined", {"n": 1}, {"n": 2}, per="arrow") == [[{"n": 100}], [{"n": 200}]]


@pytest.mark.parametrize("name", ["_row", "_error"])
def test_a_payload_with_a_column_of_the_result_is_nacked(name: str) -> None:
    """It would say which record each payload belongs to."""
    records = [Record("1", {}, {"n": 1, name: 1}), Record("2", {}, {"n": 2})]
    settings = {"function": "mod:columns", "module.source": MODULE, "per": "arrow"}
    nack, doubled = make("python", settings).process_block(records)
    assert isinstance(nack, Nack) and nack.code == "python.reserved"
    assert doubled == [Record("2", {}, {"n": 4})]
    assert records[0].after == {"n": 1, name: 1}


def test_per_arrow_an_empty_document_is_a_row() -> None:
    assert run("same", {}, {}, per="arrow") == [[{}], [{}]]
    assert run("same", {}, per="arrow") == [[{}]]


@pytest.mark.parametrize("function", ["wrong_rows", "no_table", "fewer"])
def test_a_table_that_is_none(function: str) -> None:
    assert run(function, {"n": 0}, per="arrow") == ["python.result"]


def test_a_row_that_is_split_shares_nothing() -> None:
    settings = {"function": "mod:rows", "module.source": MODULE, "per": "arrow"}
    [result] = make("python", settings).process_block([Record("1", {}, {"n": 2}, {"k": []})])
    assert isinstance(result, list)
    result[0].key["k"].append(1)  # type: ignore[index, call-overload]
    assert result[1].key == {"k": []}


def test_a_module_travels_as_its_text(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "text.py").write_text(MODULE)
    settings = {"function": "lib.text:double"}
    assert Python.travelling(settings, str(tmp_path)) == {**settings, "module.source": MODULE}
    with pytest.raises(FatalError, match="No such file") as error:
        Python.travelling({"function": "gone:f"}, str(tmp_path))
    assert (error.value.code, error.value.place) == ("python.unreadable", str(tmp_path / "gone.py"))


@pytest.mark.parametrize(("function", "text"), [("missing", MODULE), ("value", MODULE), ("f", "def f(:"), ("f", "1/0")])
def test_a_module_that_can_not_be_used(function: str, text: str) -> None:
    with pytest.raises(FatalError) as error:
        make("python", {"function": f"mod:{function}", "module.source": text})
    assert (error.value.code, error.value.place) == ("python.invalid", "mod.py")


@pytest.mark.parametrize("function", ["", "double", "mod:", "../mod:f", "mod:f()", "a/b:f"])
def test_what_names_no_function(function: str) -> None:
    with pytest.raises(ValidationError):
        make("python", {"function": function})
