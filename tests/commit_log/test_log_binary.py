"""The binary layout of reference 4, byte by byte, and the errors for a damaged stream."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_dagster.commit_log.binary import LogRecord, decode_log, encode_log_record
from conduit_dagster.recovery.errors import FatalError

REFERENCE = "0000000000000000 00000010 0000000058e2b44e 00 00000003 6b6579 00000005 76616c7565"

u64 = st.integers(0, 2**64 - 1)
log_records = st.builds(LogRecord, u64, u64, st.integers(0, 2), st.binary(max_size=9), st.binary(max_size=9))


def test_the_entry_of_the_reference() -> None:
    """CASES C22."""
    record = LogRecord(0, 1_491_252_302, 0, b"key", b"value")
    data = bytes.fromhex(REFERENCE)
    assert encode_log_record(record) == data
    assert list(decode_log(io.BytesIO(data))) == [(0, record)]


@settings(deadline=None)
@given(st.lists(log_records, max_size=5))
def test_log_round_trip(records: list[LogRecord]) -> None:
    stream = io.BytesIO(b"".join(map(encode_log_record, records)))
    assert [record for _, record in decode_log(stream)] == records


def test_a_stream_that_ends_early_says_where() -> None:
    data = encode_log_record(LogRecord(1, 2, 1, b"key", b"value")) * 2
    for end in range(len(data)):
        if end in (0, len(data) // 2):
            continue
        with pytest.raises(FatalError) as caught:
            list(decode_log(io.BytesIO(data[:end])))
        assert caught.value.code == "log.import_damaged"
        assert caught.value.place == f"byte {end}"


@pytest.mark.parametrize(
    ("change", "place", "why"),
    [
        ({20: 3}, 20, "the mode is 3"),
        ({8: 0xFF}, 28, "the data's length is 5"),
        ({11: 4}, 21, "the length of key is 3, and the message has room for 0"),
        ({21: 0x80}, 21, "the length of key is"),
        ({31: 6}, 28, "the length of data is 6, and the message has room for 5"),
        ({31: 4}, 28, "the data's length is 4"),
    ],
)
def test_numbers_that_contradict_each_other(change: dict[int, int], place: int, why: str) -> None:
    data = bytearray(bytes.fromhex(REFERENCE))
    for at, value in change.items():
        data[at] = value
    with pytest.raises(FatalError) as caught:
        list(decode_log(io.BytesIO(bytes(data))))
    assert caught.value.code == "log.import_damaged"
    assert caught.value.place == f"byte {place}"
    assert why in caught.value.message
    assert caught.value.fix


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_entries_or_refused(data: bytes) -> None:
    try:
        found = [record for _, record in decode_log(io.BytesIO(data))]
    except FatalError as error:
        assert error.code == "log.import_damaged"
    else:
        assert b"".join(map(encode_log_record, found)) == data
