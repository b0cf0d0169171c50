"""``schema``: what a contract passes, removes, nacks and stops, compared with a simple model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import make
from pydantic import ValidationError

from conduit_dagster.record import COLLECTION, Record, copy
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Nack

KINDS = {
    "string": lambda v: type(v) is str,
    "integer": lambda v: type(v) is int,
    "number": lambda v: type(v) in (int, float),
    "boolean": lambda v: type(v) is bool,
    "object": lambda v: type(v) is dict,
    "array": lambda v: type(v) is list,
    "any": lambda v: True,
}
MODES = ("evolve", "freeze", "discard_row", "discard_value")
NAMES = ("id", "a.b", "with space", 'quo"te', "é,:?")
values = st.sampled_from([None, True, 0, 2**70, 1.5, float("nan"), "x", "", {"a": 1}, [1], []])
documents = st.dictionaries(st.sampled_from([*NAMES, "new", "other"]), values)
contracts = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from(list(KINDS)), st.booleans()), min_size=1)


def text(contract: dict[str, tuple[str, bool]]) -> str:
    """As written in a file."""
    quoted = {name: '"' + name.replace('"', '\\"') + '"' for name in contract}
    return ", ".join(f"{quoted[name]}: {kind}{'?' * optional}" for name, (kind, optional) in contract.items())


def expected(document: dict[str, Any], contract: dict[str, tuple[str, bool]], columns: str, types: str) -> Any:
    """The resulting document, or the record's fate."""
    for name, (kind, optional) in contract.items():
        value = document.get(name)
        if optional if value is None else KINDS[kind](value):
            continue
        if types == "freeze" or types == "discard_row" or (types == "discard_value" and not optional):
            return types.replace("discard_value", "discard_row") + ":data_type"
        if types == "discard_value":
            document = {key: held for key, held in document.items() if key != name}
    extra = [name for name in document if name not in contract]
    if extra and columns in ("freeze", "discard_row"):
        return f"{columns}:column"
    return {name: v for name, v in document.items() if name in contract or columns == "evolve"}


@given(documents, contracts, st.sampled_from(MODES), st.sampled_from(MODES))
def test_as_the_model(document: dict[str, Any], contract: dict[str, Any], columns: str, types: str) -> None:
    processor = make("schema", {"fields": text(contract), "columns": columns, "data_type": types})
    record = Record("1", {}, copy(Record("1", {}, document)).after)
    wanted = expected(document, contract, columns, types)
    if isinstance(wanted, str) and wanted.startswith("freeze"):
        with pytest.raises(FatalError) as stopped:
            processor.process_block([record])
        assert stopped.value.code == f"schema.{wanted.partition(':')[2]}"
        return
    [result] = processor.process_block([record])
    if isinstance(wanted, str):
        assert isinstance(result, Nack) and result.code == f"schema.{wanted.partition(':')[2]}"
    else:
        assert isinstance(result, Record) and repr(result.after) == repr(wanted)  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("tables", "wanted"), [("evolve", None), ("discard_row", "schema.table"), ("discard_value", "schema.table")]
)
def test_each_collection_has_its_contract(tables: str, wanted: str | None) -> None:
    processor = make("schema", {"fields.users": "id:integer", "fields.a.b": "n:string", "tables": tables})
    given = [
        Record("1", {COLLECTION: "users"}, {"id": 1}),
        Record("2", {COLLECTION: "users"}, {"n": "x"}),
        Record("3", {COLLECTION: "a.b"}, {"n": "x"}),
        Record("4", {COLLECTION: "else"}, {"z": 1}),
        Record("5", {}, {"z": 1}),
    ]
    results = processor.process_block(given)
    codes = [result.code if isinstance(result, Nack) else None for result in results]
    assert codes == [None, "schema.data_type", None, wanted, wanted]


def test_the_neighbours_of_a_breach_go_on_and_what_has_no_payload_too() -> None:
    processor = make("schema", {"fields": "id:integer"})
    given = [
        Record("1", {}, {"id": 1}),
        Record("2", {}, {"id": "1"}),
        Record("3", {}, None, operation="delete"),
        Record("4", {}, b"raw"),
        Record("5", {}, {"id": True}),
        Record("6", {}, {"id": 6}),
    ]
    results = processor.process_block(given)
    codes = [result.code if isinstance(result, Nack) else None for result in results]
    assert codes == [None, "schema.data_type", None, "field.unresolved", "schema.data_type", None]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fields": ""},
        {"fields": "id"},
        {"fields": "id:int"},
        {"fields": "id:integer, id:string"},
        {"fields": "id:integer!"},
        {"fields.users": "id"},
        {"fields": "id:any", "columns": "drop"},
    ],
)
def test_contracts_that_say_nothing_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        make("schema", settings)
