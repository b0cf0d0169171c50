"""``schema``: check the documents of a collection against a contract."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple

from pydantic import ConfigDict
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.field_reference import kind_of
from conduit_dagster.payload_code import NoFitError, PayloadCode
from conduit_dagster.processors.common.in_place import InPlaceProcessor, document_of
from conduit_dagster.record import Document
from conduit_dagster.sdk import Example, ProcessError, ProcessorContext, ProcessorSettings, Record
from conduit_dagster.sdk.processor import StepError

Mode = Literal["evolve", "freeze", "discard_row", "discard_value"]
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "any": (object,),
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
_FIELD: Final = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*"|[^":?]+?)\s*:\s*(?P<type>\w+)\s*(?P<optional>\??)')
_ITEM: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^,"]|"(?!.*"))+')


class _Missing:
    """Type of the marker for a missing field."""


_MISSING: Final = _Missing()


class SchemaColumn(NamedTuple):
    """The contract for one field."""

    types: tuple[type, ...]
    kind: str
    optional: bool

    @property
    def exact(self) -> frozenset[type]:
        """Exact types of most valid values; a value of any other type is left to :meth:`takes`."""
        return frozenset((*self.types, *((type(None), type(_MISSING)) if self.optional else ())))

    def takes(self, value: Any) -> bool:
        """Return whether the field may hold the value."""
        if value is None or value is _MISSING:
            return self.optional
        # True is an int in Python, but not a number in JSON
        return isinstance(value, self.types) and (type(value) is not bool or self.kind in ("boolean", "any"))


def columns_in(text: str, setting: str) -> dict[str, SchemaColumn]:
    """Parse the fields of a contract, the value of a setting: ``id:integer, name:string?``. Raises a finding."""
    found: dict[str, SchemaColumn] = {}
    for item in _ITEM.finditer(text):
        if not item[0].strip():
            continue
        start = item.start() + len(item[0]) - len(item[0].lstrip())
        name, column = _column(item[0].strip(), start, setting)
        if name in found:
            raise refuse(f"the field {name} is listed twice", fix="name each field once", at=setting, column=start)
        found[name] = column
    if not found:
        raise refuse("the contract names no field", fix="such as id:integer, name:string?", at=setting)
    return found


def _column(item: str, start: int, setting: str) -> tuple[str, SchemaColumn]:
    match = _FIELD.fullmatch(item)
    if match is None:
        fix = "such as id:integer, or name:string? where it may lack"
        raise refuse(f"{item} is not NAME:TYPE", fix=fix, at=setting, column=start)
    name, kind = match["name"].strip(), match["type"]
    if kind not in _TYPES:
        column = start + match.start("type")
        raise refuse(f"there is no type {kind}", fix=f"one of {', '.join(_TYPES)}", at=setting, column=column)
    return json.loads(name) if name.startswith('"') else name, SchemaColumn(_TYPES[kind], kind, bool(match["optional"]))


class SchemaSettings(ProcessorSettings):
    """Settings of ``schema``."""

    model_config = ConfigDict(extra="allow")
    open_keys: ClassVar[tuple[str, ...]] = ("fields.*",)

    fields: str = ""
    """The contract of all collections without one of their own: `id:integer, name:string?`. `?`: it may be null, or
    missing. Types: `string`, `integer`, `number`, `boolean`, `object`, `array`, `any`. `fields.NAME` is the contract of
    the collection `NAME`. A name with a comma, colon or `?` goes into double quotes.
    """
    tables: Mode = "evolve"
    """What becomes of records of a collection that no contract is for."""
    columns: Mode = "evolve"
    """What becomes of fields that the contract does not name."""
    data_type: Mode = "discard_row"
    """What becomes of values of another type than the contract says, and of fields that are missing."""

    @override
    def model_post_init(self, context: Any, /) -> None:
        if not self.contracts:
            raise refuse("there is no contract", fix="fields: id:integer, name:string?")

    @property
    def contracts(self) -> Mapping[str, dict[str, SchemaColumn]]:
        """Contracts by collection; the contract of all other collections has an empty name."""
        own = {name: columns_in(text, f"fields.{name}") for name, text in self.below("fields.").items()}
        return {"": columns_in(self.fields, "fields"), **own} if self.fields else own


class SchemaProcessor(InPlaceProcessor):
    """Check documents against a declared contract per collection, with the modes of dlt's schema contracts.

    `evolve` passes any data. `discard_row` nacks the record, so that it becomes a dead letter. `discard_value` removes
    the field; for a collection without a contract and for a required field it acts like `discard_row`. `freeze` stops
    the pipeline with an error that a restart does not fix: nothing of the step is delivered until the contract or the
    data has changed. Values are not converted: use `field.convert`. Records without a payload, such as deletes, pass.
    Only the top level is checked.
    """

    name = "schema"
    keeps_fields = True
    keyless = True
    Settings = SchemaSettings
    settings: SchemaSettings
    examples = (
        Example(
            "A new field evolves",
            {"fields": "id:integer, name:string?"},
            Record("1", {}, {"id": 1, "new": True}),
            Record("1", {}, {"id": 1, "new": True}),
        ),
        Example(
            "A new field is removed",
            {"fields": "id:integer, name:string?", "columns": "discard_value"},
            Record("1", {}, {"id": 1, "name": "a", "new": True}),
            Record("1", {}, {"id": 1, "name": "a"}),
        ),
        Example("Another type", {"fields": "id:integer"}, Record("1", {}, {"id": "1"}), "schema.data_type"),
    )

    def __init__(self, settings: SchemaSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._contracts = settings.contracts
        self._default = self._contracts.get("")
        if self._default and len(self._contracts) == 1:
            self.payload_code = self._code(self._default)

    def _code(self, contract: Mapping[str, SchemaColumn]) -> PayloadCode | None:
        """Return code for documents that satisfy the contract, except for extra fields, which it may remove."""
        if any(column.kind == "any" for column in contract.values()):
            return None
        checks = [(name, column.exact) for name, column in contract.items()]
        fits = "after.get(name, missing).__class__ in types"
        source = f"for name, types in checks:\n    if not {fits}:\n        raise NoFitError"
        if self.settings.columns == "discard_value":
            source += "\nfor name in [name for name in after if name not in contract]:\n    del after[name]"
        elif self.settings.columns != "evolve":
            source += "\nfor name in after:\n    if name not in contract:\n        raise NoFitError"
        names = {"checks": checks, "missing": _MISSING, "contract": frozenset(contract), "NoFitError": NoFitError}
        return PayloadCode(source, names)

    @override
    def change(self, record: Record) -> None:
        document = document_of(record)
        if document is None:
            return
        collection = record.collection
        contract = self._contracts.get(collection, self._default)
        if contract is None:
            _broken(
                self.settings.tables,
                "schema.table",
                f"no contract is for the collection {collection or 'without a name'}",
            )
            return
        self._hold(document, contract)

    def _hold(self, document: Document, contract: Mapping[str, SchemaColumn]) -> None:
        for name, column in contract.items():
            value = document.get(name, _MISSING)
            if not column.takes(value) and _broken(
                self.settings.data_type, "schema.data_type", _wrong(name, value, column)
            ):
                _discard(document, name, value, column)
        if self.settings.columns != "evolve" and not document.keys() <= contract.keys():
            for name in [name for name in document if name not in contract]:
                if _broken(self.settings.columns, "schema.column", f"the contract has no field {name}"):
                    del document[name]


def _broken(mode: Mode, code: str, message: str) -> bool:
    """Return whether a breach discards only the value. Raises if it discards the record or stops the step."""
    if mode == "freeze":
        fix = "change the contract or the data, and run again"
        raise StepError(f"the contract is frozen: {message}", code=code, fix=fix)
    if mode == "discard_row" or (mode == "discard_value" and code == "schema.table"):
        raise ProcessError(message, code=code)
    return mode == "discard_value"


def _discard(document: Document, name: str, value: Any, column: SchemaColumn) -> None:
    if not column.optional:
        raise ProcessError(f"{_wrong(name, value, column)}, and it must be there", code="schema.data_type")
    del document[name]


def _wrong(name: str, value: Any, column: SchemaColumn) -> str:
    return f"the field {name} is {'missing' if value is _MISSING else kind_of(value)}, not {column.kind}"
