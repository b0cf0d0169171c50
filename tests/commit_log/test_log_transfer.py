"""An exported and imported log is the same log, to the second."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.commit_log_lab import SOURCE, LogLab

from conduit_dagster.commit_log.binary import LogRecord, decode_log, encode_log_record, export_entries, import_entries
from conduit_dagster.commit_log.entries import Entry, decode_entries, encode_entries
from conduit_dagster.commit_log.segment_files import PartFile, read
from conduit_dagster.record import COLLECTION, MODES, OPERATIONS, Nack, Record, mode_of
from conduit_dagster.recovery.errors import FatalError

texts = st.text(st.characters(codec="utf-8"), max_size=6)
documents = st.dictionaries(texts, st.none() | st.integers() | texts | st.lists(st.booleans()), max_size=3)
data = st.none() | st.binary(max_size=6) | documents
records = st.builds(
    Record, texts, st.dictionaries(st.just(COLLECTION) | texts, texts, max_size=2), data, data, data,
    st.sampled_from(OPERATIONS),
)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Entries whose offsets have gaps, as in a compacted log."""
    offsets = sorted(draw(st.sets(st.integers(0, 2**63 - 1), max_size=5)))
    seconds = st.integers(0, 2**40).map(lambda second: second * 1_000_000)
    nack = st.none() | st.tuples(texts, st.builds(Nack, texts, texts))
    entries = []
    for offset in offsets:
        record = draw(records)
        mode = draw(st.sampled_from(MODES))
        entries.append(Entry("in", offset, draw(seconds), mode, record.collection, record, draw(nack)))
    return entries


@settings(deadline=None)
@given(logs())
def test_round_trip(entries: list[Entry]) -> None:
    out = io.BytesIO()
    assert export_entries([encode_entries(entries)], out) == len(entries)
    out.seek(0)
    assert list(import_entries(out, "in")) == entries


def test_from_one_log_into_another(log: LogLab) -> None:
    log.append(["a", "b", "a"], nacked=[1])
    log.append(["c"])
    out = io.BytesIO()
    assert export_entries(read(log.folder, log.parts(), 1), out) == 3
    out.seek(0)
    entries = list(import_entries(out, SOURCE))
    file = PartFile(log.folder.segment(4), 4, "imported")
    file.write(encode_entries([entry._replace(offset=entry.offset + 3) for entry in entries]))
    written = file.finish()
    assert written is not None
    part = written.appended(4, None)
    log.run(lambda c: log.store.commit(c, SOURCE, [part], None))
    again = [entry for batch in read(log.folder, log.parts(4), 4) for entry in decode_entries(batch)]
    assert [entry._replace(offset=entry.offset - 3) for entry in again] == entries
    assert [(entry.offset, entry.nack and entry.nack[0]) for entry in again] == [(4, "node"), (5, None), (6, None)]


def test_the_key_is_the_namespace_and_the_data_opencdc_json() -> None:
    record = Record(7, {COLLECTION: "events"}, {"a": 2**70}, b"k", None, "snapshot")
    entry = Entry("in", 3, 1_491_252_302_999_999, "copy", "events", record, ("node", Nack("bad", "no")))
    out = io.BytesIO()
    export_entries([encode_entries([entry])], out)
    out.seek(0)
    ((_, found),) = decode_log(out)
    assert (found.offset, found.timestamp, found.mode, found.key) == (3, 1_491_252_302, 0, b"events")
    assert found.data == (
        b'{"position":"Nw==","operation":"snapshot","metadata":{"opencdc.collection":"events"},"key":"aw==",'
        b'"payload":{"before":null,"after":{"a":1180591620717411303424}},'
        b'"nack":{"node":"node","code":"bad","message":"no"}}'
    )


GOOD = b'{"position":"MQ==","operation":"create","metadata":{},"key":null,"payload":{"before":null,"after":null}}'


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data": b"value"}, "not an OpenCDC record"),
        ({"data": b"{}"}, "not an OpenCDC record"),
        ({"data": GOOD.replace(b"MQ==", b"MQ")}, "not an OpenCDC record"),
        ({"data": b"[" * 100_000}, "not an OpenCDC record"),
        ({"key": b"\xff"}, "not an OpenCDC record"),
        ({"offset": 5}, "offset 5 comes after offset 5"),
        ({"offset": 2**63}, "comes after"),
        ({"timestamp": 2**60}, "the time of offset 6"),
    ],
)
def test_an_entry_that_is_not_ours_is_refused_with_its_place(changes: dict[str, Any], why: str) -> None:
    first = encode_log_record(LogRecord(5, 1, 1, b"", GOOD))
    second = encode_log_record(LogRecord(6, 1, 1, b"", GOOD)._replace(**changes))
    with pytest.raises(FatalError) as caught:
        list(import_entries(io.BytesIO(first + second), "in"))
    assert caught.value.code == "log.import_damaged"
    assert caught.value.place == f"byte {len(first)}"
    assert why in caught.value.message


@given(
    st.lists(
        st.builds(LogRecord, st.just(0), st.integers(0, 2**40), st.integers(0, 2), st.binary(max_size=4), st.binary()),
        max_size=4,
    )
)
@settings(max_examples=100, deadline=None)
def test_any_entry_of_the_layout_is_imported_as_raw(found: list[LogRecord]) -> None:
    """Whatever the bytes, they are one record's payload; key, mode and time are kept, and the log accepts it."""
    found = [record._replace(offset=place) for place, record in enumerate(found)]
    stream = io.BytesIO(b"".join(map(encode_log_record, found)))
    entries = list(import_entries(stream, "in", "raw"))
    if entries:
        assert list(decode_entries(encode_entries(entries))) == entries
    for entry, record in zip(entries, found, strict=True):
        assert (entry.offset, entry.timestamp_us, MODES.index(entry.mode)) == (
            record.offset,
            record.timestamp * 1_000_000,
            record.mode,
        )
        assert (entry.record.after, entry.record.key) == (record.data, record.key or None)
        assert mode_of(entry.record) == entry.mode
        assert entry.namespace == entry.record.collection == record.key.decode("utf-8", "backslashreplace")


def test_c22_the_entry_of_the_reference_is_imported_as_raw() -> None:
    text = "0000000000000000 00000010 0000000058e2b44e 00 00000003 6b6579 00000005 76616c7565"
    (entry,) = import_entries(io.BytesIO(bytes.fromhex(text)), "in", "raw")
    assert (entry.namespace, entry.mode, entry.record.after, entry.record.operation) == (
        "key", "copy", b"value", "snapshot",
    )  # fmt: skip
