"""``avro.encode``: which record of a union a document becomes; no field is left out for another record."""

from __future__ import annotations

import json
import tempfile
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.avro_runs import FIRST, decode, one

from conduit_dagster.record import Record
from conduit_dagster.schemas.schema_registry import FolderRegistry
from conduit_dagster.sdk import Nack

AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
CARD = {"type": "record", "name": "Card", "fields": [{"name": "amount", "type": AMOUNT}, {"name": "n", "type": "int"}]}
CASH = {"type": "record", "name": "Cash", "fields": [NOTE]}


def around(kind: Any) -> Any:
    """A record with one field of this type."""
    return {"type": "record", "name": "Payment", "fields": [{"name": "of", "type": kind}]}


def there_and_back(url: str, schema: Any, document: Any) -> Any:
    """The document after encoding and decoding, or the nack."""
    FolderRegistry(url).register("example", json.dumps(schema))
    found = one("avro.encode", Record("1", {}, document), {**FIRST, "url": url})
    return found if isinstance(found, Nack) else decode(found, url).after


@pytest.fixture
def url(tmp_path: Any) -> str:
    """A registry without schemas."""
    return str(tmp_path)


@pytest.mark.parametrize("kind", ["nested", "listed", "in a map", "top", "named before"])
@pytest.mark.parametrize(
    ("document", "fits"),
    [
        ({"amount": "1.50", "n": 1}, True),
        ({"note": "x"}, True),
        ({"note": None}, True),
        ({"amount": "123456.50", "n": 1}, False),
        ({"amount": "1.50", "n": "one"}, False),
        ({"amount": "1.50"}, False),
        ({"other": 1}, False),
    ],
)
def test_a_document_is_the_record_with_its_fields_or_a_nack(url: str, kind: str, document: Any, fits: bool) -> None:
    union = [CARD, CASH]
    schema, whole = {
        "nested": (around(["null", *union]), {"of": document}),
        "listed": (around({"type": "array", "items": union}), {"of": [{"note": None}, document]}),
        "in a map": (around({"type": "map", "values": union}), {"of": {"k": document}}),
        "top": (union, document),
        "named before": (
            {"type": "record", "name": "Both", "fields": [
                {"name": "first", "type": CARD}, {"name": "second", "type": CASH},
                {"name": "of", "type": ["null", "Card", "Cash"]},
            ]},
            {"first": {"amount": "0.00", "n": 0}, "second": {"note": None}, "of": document},
        ),
    }[kind]  # fmt: skip
    found = there_and_back(url, schema, whole)
    if fits:
        assert found == whole
    else:
        assert isinstance(found, Nack) and found.code == "avro.encode.invalid"


def test_a_record_that_contains_itself(url: str) -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [{"name": "left", "type": ["null", "Tree", CASH], "default": None}, {"name": "v", "type": "int"}],
    }
    document = {"left": {"left": {"note": "x"}, "v": 2}, "v": 1}
    assert there_and_back(url, tree, document) == document
    found = there_and_back(url, tree, {"left": {"left": {"left": None, "v": "2"}, "v": 2}, "v": 1})
    assert isinstance(found, Nack)


def test_a_map_beside_records(url: str) -> None:
    union = around([CARD, CASH, {"type": "map", "values": "string"}])
    for document in ({"amount": "1.50", "n": 1}, {"a": "b"}):
        assert there_and_back(url, union, {"of": document}) == {"of": document}


TYPES: list[Any] = ["int", "string", ["null", "string"], ["null", "int"], AMOUNT]
FIELDS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(TYPES), min_size=1)
DOCUMENTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([None, 1, 2**40, "x", "1.50"]))


@given(st.lists(FIELDS, min_size=2, max_size=3), DOCUMENTS)
def test_no_other_record_takes_it(records: list[dict[str, Any]], document: dict[str, Any]) -> None:
    """What comes back has the document's values, of as many fields as any of the records has."""
    union = [
        {"type": "record", "name": f"R{number}", "fields": [{"name": name, "type": kind} for name, kind in of.items()]}
        for number, of in enumerate(records)
    ]
    with tempfile.TemporaryDirectory() as url:
        found = there_and_back(url, around(union), {"of": document})
    if isinstance(found, Nack):
        return
    kept = [name for name in document if name in found["of"]]
    for name in kept:
        was, now = document[name], found["of"][name]
        assert now == was or Decimal(now) == was, "an integer may be a decimal"
    assert len(kept) == max(len(of.keys() & document.keys()) for of in records)
