"""An entry gives back exactly the record that was logged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_dagster.commit_log.entries import (
    SCHEMA,
    decode_batch,
    decode_entries,
    encode_block,
    encode_entries,
    mode_of,
)
from conduit_dagster.record import COLLECTION, OPERATIONS, Nack, Record

texts = st.text(st.characters(codec="utf-8"), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
data = st.none() | st.binary(max_size=8) | st.dictionaries(texts, json_values, max_size=3)
metadata = st.dictionaries(st.sampled_from([COLLECTION, "conduit.mode", "a", "b"]) | texts, texts, max_size=4)
positions = st.integers() | texts
pool = st.lists(metadata, min_size=1, max_size=3)


@st.composite
def blocks(draw: st.DrawFn) -> list[Record]:
    """Records, some of which share their metadata, as those of a source do."""
    shared = draw(pool)
    one = st.builds(
        Record, positions, st.sampled_from(shared) | metadata, data, data, data, st.sampled_from(OPERATIONS)
    )
    return draw(st.lists(one, max_size=12))


def plain(record: Record) -> tuple[Any, ...]:
    """Everything, including the order of keys; a position is text."""
    return (
        str(record.position), list(record.metadata.items()), repr(record.after), repr(record.key),
        repr(record.before), record.operation,
    )  # fmt: skip


@settings(deadline=None)
@given(blocks(), st.dictionaries(st.integers(0, 11), st.tuples(texts, st.builds(Nack, texts, texts)), max_size=4))
def test_round_trip(records: list[Record], nacks: dict[int, tuple[str, Nack]]) -> None:
    nacks = {place: nack for place, nack in nacks.items() if place < len(records)}
    batch = encode_block("in", 7, records, None, 1_491_252_302_000_001, nacks)
    assert batch.schema.equals(SCHEMA)
    decoded = decode_batch(batch)
    assert list(map(plain, decoded.records)) == list(map(plain, records))
    assert decoded.offsets == list(range(7, 7 + len(records)))
    assert decoded.nacks == nacks
    entries = list(decode_entries(batch))
    assert [entry.mode for entry in entries] == list(map(mode_of, records))
    assert [entry.namespace for entry in entries] == [record.collection for record in records]
    assert {(entry.source, entry.timestamp_us) for entry in entries} <= {("in", 1_491_252_302_000_001)}
    assert list(decode_entries(encode_entries(entries))) == entries


@settings(deadline=None)
@given(blocks(), st.data())
def test_a_slice_and_a_filtered_block_decode_as_their_rows(records: list[Record], draw: st.DataObject) -> None:
    batch = encode_block("in", 0, records, None, 0, {})
    start, end = sorted(draw.draw(st.tuples(st.integers(0, len(records)), st.integers(0, len(records)))))
    decoded = decode_batch(batch.slice(start, end - start))
    assert list(map(plain, decoded.records)) == list(map(plain, records[start:end]))
    mask = draw.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    kept = decode_batch(batch.filter(pa.array(mask, pa.bool_())))
    assert kept.offsets == [place for place, keep in enumerate(mask) if keep]
    assert list(map(plain, kept.records)) == [plain(records[place]) for place in kept.offsets]


@settings(deadline=None)
@given(blocks())
def test_keys_and_positions_that_were_left_out_can_be_asked_for(records: list[Record]) -> None:
    decoded = decode_batch(encode_block("in", 0, records, None, 0, {}), keys=False)
    assert all(record.key is None and record.position == 0 for record in decoded.records)
    for place, record in enumerate(decoded.records):
        decoded.complete(place, record)
    assert list(map(plain, decoded.records)) == list(map(plain, records))


@pytest.mark.parametrize("count", [1, 2, 5000])
def test_records_with_the_same_metadata_share_it_when_they_are_read(count: int) -> None:
    records = [Record(i, {COLLECTION: "a", "x": "y"}, b"") for i in range(count)]
    decoded = decode_batch(encode_block("in", 0, records, None, 0, {}))
    assert len({id(record.metadata) for record in decoded.records}) == 1


def test_the_order_of_keys_is_kept() -> None:
    """Equal dicts may still be written differently."""
    both = [{"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "1", "b": "2"}]
    decoded = decode_batch(encode_block("in", 0, [Record(1, one, b"") for one in both], None, 0, {})).records
    assert [list(record.metadata) for record in decoded] == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_metadata_of_some_kinds_is_shared_by_kind() -> None:
    records = [Record(i, {COLLECTION: "ab"[i % 2]}, b"") for i in range(100)]
    decoded = decode_batch(encode_block("in", 0, records, None, 0, {})).records
    assert len({id(record.metadata) for record in decoded}) == 2
    assert [record.collection for record in decoded] == ["a", "b"] * 50


def test_metadata_of_its_own_in_each_record() -> None:
    records = [Record(i, {COLLECTION: "a", "n": str(i)}, b"") for i in range(5000)]
    assert decode_batch(encode_block("in", 0, records, None, 0, {})).records[4321].metadata == records[4321].metadata


def test_integers_of_any_length_and_nulls_are_exact() -> None:
    document = {"z": 2**200, "a": -(2**64), "n": None, "list": [1, 1.0, True], "": {"é": "\x00\u2028"}}
    (found,) = decode_batch(encode_block("in", 0, [Record(1, {}, document)], None, 0, {})).records
    assert repr(found.after) == repr(document)


@pytest.mark.parametrize(
    ("metadata", "operation", "mode"),
    [
        ({}, "create", "sync"),
        ({}, "snapshot", "copy"),
        ({"conduit.mode": "complete"}, "snapshot", "complete"),
        ({"conduit.mode": "copy"}, "update", "copy"),
        ({"conduit.mode": "other"}, "snapshot", "copy"),
    ],
)
def test_mode_of(metadata: dict[str, str], operation: str, mode: str) -> None:
    record = Record(1, metadata, None, None, None, operation)
    assert mode_of(record) == mode
    (entry,) = decode_entries(encode_block("in", 0, [record], None, 0, {}))
    assert entry.mode == mode


def test_modes_that_are_given_win() -> None:
    records = [Record(i, {}, b"") for i in range(3)]
    entries = decode_entries(encode_block("in", 0, records, ["copy", "complete", "sync"], 0, {}))
    assert [entry.mode for entry in entries] == ["copy", "complete", "sync"]
