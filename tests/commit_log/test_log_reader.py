"""Ranges of the log, and files that differ from the manifest."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.commit_log_lab import SOURCE, LogLab

from conduit_dagster import storage
from conduit_dagster.commit_log.entries import decode_entries, encode_block
from conduit_dagster.commit_log.segment_files import MissingPartError, PartFile, read, verify
from conduit_dagster.commit_log.segment_layout import LogFolder, hidden
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.state.log_store import LogPart


def test_any_range_in_blocks_of_any_size(log: LogLab) -> None:
    for _ in range(3):
        log.append(["a"] * 7, files=2)
    for start in range(22):
        for stop in (None, *range(start, 23)):
            assert log.offsets(start, stop) == list(range(21))[start:stop]
    for block in (1, 2, 5, 100):
        assert [seen.offset for seen in log.read(3, 20, block)] == list(range(3, 20))
        assert all(len(batch) <= block for batch in read(log.folder, log.parts(), block=block))


def test_an_operator_views_a_range(log: LogLab) -> None:
    """CASES C9: offset, time, mode, operation, namespace, record."""
    log.append(["A"] * 16)
    entries = [entry for batch in read(log.folder, log.parts(9, 16), 9, 16) for entry in decode_entries(batch)]
    assert [(e.offset, e.timestamp_us, e.mode, e.record.operation, e.namespace, e.record.after) for e in entries] == [
        (offset, 1_491_252_302_000_000, "sync", "create", "A", str(offset).encode()) for offset in range(9, 16)
    ]


def test_some_columns(log: LogLab) -> None:
    log.append(["a", "b"])
    (batch,) = read(log.folder, log.parts(), columns=["namespace"])
    assert batch.to_pydict() == {"offset": [0, 1], "namespace": ["a", "b"]}
    (batch,) = read(log.folder, log.parts(), 1, columns=["metadata", "after"])
    assert batch.schema.names == ["offset", "metadata", "after"]


def test_only_the_row_groups_of_the_range_are_read(local_log: LogLab) -> None:
    """A damaged page that is not requested is not read."""
    file = PartFile(local_log.folder.segment(0), 0, "token")
    for first in range(0, 4 << 16, 1 << 14):
        file.write(encode_block(SOURCE, first, [Record(i, {}, b"%d" % i) for i in range(1 << 14)], None, 0, {}))
    written = file.finish()
    assert written is not None
    part = written.appended(0, None)
    path = Path(local_log.folder.segment(0), hidden(part.name))
    data = bytearray(path.read_bytes())
    data[1000:1100] = bytes(100)
    path.write_bytes(data)
    offsets = [o for b in read(local_log.folder, [part], 70_000, 200_000) for o in b.column("offset").to_pylist()]
    assert offsets == list(range(70_000, 200_000))
    with pytest.raises(FatalError) as caught:
        list(read(local_log.folder, [part], 65_000))
    assert caught.value.code == "log.corrupt"


def damage(data: bytes, how: str) -> bytes:
    middle = len(data) // 3
    return {
        "cut": data[:-10],
        "longer": data + b"x",
        "empty": b"",
        "footer": data[:-4] + b"\0\0\0\0",
        "zeros": bytes(len(data)),
        "a bit": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
    }[how]


@pytest.mark.parametrize("how", ["cut", "longer", "empty", "footer", "zeros", "a bit"])
def test_a_damaged_file_is_named(local_log: LogLab, how: str) -> None:
    local_log.append(["a"])
    (part,) = local_log.append([f"namespace {i}" for i in range(100)])
    local_log.append(["a"])
    path = Path(local_log.folder.segment(0), part.name)
    path.write_bytes(damage(path.read_bytes(), how))
    assert local_log.offsets(0, 1) == [0]
    assert local_log.offsets(101) == [101]
    with pytest.raises(FatalError) as caught:
        local_log.read(50)
    assert caught.value.code == "log.corrupt"
    assert part.name in str(caught.value.place)
    assert "offsets 1 to 100" in caught.value.message
    assert "100 at least" in str(caught.value.fix)


def test_every_bit_of_a_file_is_checked(local_log: LogLab) -> None:
    """One bit anywhere: reading gives entries or refuses the file, and the digest always detects it."""
    parts = local_log.append(["a", "b", "c"])
    verify(local_log.folder, parts)
    path = Path(local_log.folder.segment(0), parts[0].name)
    data = path.read_bytes()
    for place in range(0, len(data), 5):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(FatalError) as caught:
            verify(local_log.folder, parts)
        assert caught.value.code == "log.corrupt"
        try:
            assert sum(map(len, read(local_log.folder, parts))) <= 3
        except FatalError as error:
            assert error.code == "log.corrupt"


def test_a_missing_file_is_named(log: LogLab) -> None:
    log.append(["a"])
    (part,) = log.append(["b", "b"])
    storage.remove(storage.join(log.folder.segment(0), part.name))
    for attempt in (log.read, lambda: list(read(log.folder, log.parts()))):
        with pytest.raises(MissingPartError) as caught:
            attempt()
        assert caught.value.code == "log.missing"
        assert part.name in str(caught.value.place)
        assert "offsets 1 to 2" in caught.value.message


def test_a_folder_in_the_place_of_a_file_is_an_outage(local_log: LogLab) -> None:
    """An error of the operating system is not damage."""
    (part,) = local_log.append(["a"])
    path = Path(local_log.folder.segment(0), part.name)
    path.unlink()
    path.mkdir()
    with pytest.raises(TransientError):
        local_log.read()


def test_a_place_holds_no_password() -> None:
    folder = LogFolder("memory://user:secret@host/log", "p", "in")
    part = LogPart(0, 1, 0, "gone.parquet", 1, 1, "")
    with pytest.raises(MissingPartError) as caught:
        list(read(folder, [part]))
    assert "secret" not in f"{caught.value.place} {caught.value.message} {caught.value.fix}"
