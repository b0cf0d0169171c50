"""Files of the log: written by tasks, hidden until the manifest names them, and read in ranges; damaged files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pyarrow.parquet as pq
import pytest
from lab.commit_log_lab import SOURCE, LogLab
from lab.small_disk import no_file_beyond

from conduit_dagster import storage
from conduit_dagster.commit_log.entries import decode_batch, decode_entries, encode_block
from conduit_dagster.commit_log.segment_files import MissingPartError, PartFile, read, read_current, verify
from conduit_dagster.commit_log.segment_layout import Last, LogFolder, hidden
from conduit_dagster.record import COLLECTION, Nack, Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.secret_values import remember
from conduit_dagster.state.log_store import LogPart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def records(*namespaces: str) -> list[Record]:
    return [Record(place, {COLLECTION: namespace}, b"x") for place, namespace in enumerate(namespaces)]


def test_what_it_reports_is_what_is_there(log: LogLab) -> None:
    file = PartFile(log.folder.segment(0), 5, "token")
    file.write(encode_block(SOURCE, 5, records("a", "b", "a"), None, 0, {1: ("node", Nack("c", "m"))}))
    file.write(encode_block(SOURCE, 8, records("c", "a"), ["copy", "complete"], 0, {}))
    written = file.finish()
    assert written is not None
    assert written.name == "00000000000000000005-token.parquet"
    assert (written.first, written.entries, written.nacked) == (5, 5, 1)
    assert written.namespaces == {"a": Last(9, "complete"), "b": Last(6, "sync"), "c": Last(8, "copy")}
    with storage.open_read(storage.join(log.folder.segment(0), hidden(written.name))) as found:
        data = found.read()
    assert (written.bytes, written.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_without_entries_there_is_no_file(log: LogLab) -> None:
    file = PartFile(log.folder.segment(0), 0, "token")
    file.write(encode_block(SOURCE, 0, [], None, 0, {}))
    assert file.finish() is None
    assert log.folder.names(0) == []


def test_an_existing_file_is_never_overwritten(log: LogLab) -> None:
    first, second = (PartFile(log.folder.segment(0), 0, "same") for _ in range(2))
    block = encode_block(SOURCE, 0, records("a"), None, 0, {})
    first.write(block)
    assert first.finish() is not None
    second.write(block)
    with pytest.raises(FileExistsError):
        second.finish()
    second.abort()
    assert log.folder.names(0) == ["_00000000000000000000-same.parquet"]


def test_offsets_only_grow(log: LogLab) -> None:
    file = PartFile(log.folder.segment(0), 5, "token")
    with pytest.raises(ValueError, match="offset 4 after offset 4"):
        file.write(encode_block(SOURCE, 4, records("a"), None, 0, {}))


def test_abort_removes_it(log: LogLab) -> None:
    file = PartFile(log.folder.segment(0), 0, "token")
    payloads = [Record(i, {}, bytes(1 << 20)) for i in range(40)]
    file.write(encode_block(SOURCE, 0, payloads, None, 0, {}))
    assert len(log.folder.names(0)) == 1
    file.abort()
    assert log.folder.names(0) == []


def test_a_full_disk_is_an_os_error_and_leaves_nothing(local_log: LogLab) -> None:
    file = PartFile(local_log.folder.segment(0), 0, "token")
    with no_file_beyond(2000):
        file.write(encode_block(SOURCE, 0, records(*map(str, range(5000))), None, 0, {}))
        with pytest.raises(OSError, match="File too large"):
            file.finish()
        file.abort()
    assert local_log.folder.names(0) == []


def test_large_payloads_make_short_row_groups(local_log: LogLab) -> None:
    file = PartFile(local_log.folder.segment(0), 0, "token")
    for first in range(0, 96, 8):
        payloads = [Record(i, {}, bytes(1 << 20)) for i in range(8)]
        file.write(encode_block(SOURCE, first, payloads, None, 0, {}))
    assert file.finish() is not None
    (path,) = Path(local_log.folder.segment(0)).iterdir()
    assert pq.ParquetFile(path).num_row_groups == 3


def test_publishing_a_name_may_be_repeated(log: LogLab) -> None:
    (part,) = log.append(["a", "b"], publish=False)
    assert log.folder.names(0) == [hidden(part.name)]
    assert log.offsets() == [0, 1]
    for _ in range(2):
        log.folder.publish_name(0, part.name)
        assert log.folder.names(0) == [part.name]
    assert log.offsets() == [0, 1]


def test_a_copy_that_was_not_finished_is_made_again(log: LogLab) -> None:
    """Where a rename is a copy and a removal, a crash in between leaves both, or half of the copy."""
    (part,) = log.append(["a"], publish=False)
    with storage.open_read(storage.join(log.folder.segment(0), hidden(part.name))) as file:
        data = file.read()
    for left in (data, data[:100]):
        for name in (part.name, hidden(part.name)):
            url = storage.join(log.folder.segment(0), name)
            _put(url, left if name == part.name else data)
        log.folder.publish_name(0, part.name)
        assert log.folder.names(0) == [part.name]
        assert log.offsets() == [0]


def _put(url: str, data: bytes) -> None:
    fsspec.url_to_fs(url)[0].pipe_file(url, data)


def test_spark_reads_the_folder_as_it_is(local_log: LogLab, spark: SparkSession) -> None:
    """Published files, all segments, and no file that is not in the manifest."""
    local_log.append(["a", "b"], nacked=[1])
    local_log.append(["a"], size=0)
    local_log.write(2, 3, ["hidden"])
    frame = spark.read.parquet(local_log.folder.url)
    rows = frame.orderBy("offset").collect()
    assert [(r["offset"], r["namespace"], bytes(r["after"]), r["segment"]) for r in rows] == [
        (0, "a", b"0", 0), (1, "b", b"1", 0), (2, "a", b"2", 2),
    ]  # fmt: skip
    assert rows[0]["metadata"] == {COLLECTION: "a"}
    assert [r["nack_code"] for r in rows] == [None, "bad", None]
    assert rows[0]["timestamp"].timestamp() == 1_491_252_302
    types = dict(frame.dtypes)
    assert (types["source"], types["offset"], types["metadata"]) == ("string", "bigint", "map<string,string>")
    assert (types["timestamp"], types["after"], types["after_kind"]) == ("timestamp", "binary", "string")


def test_blocks_cross_no_row_group(log: LogLab) -> None:
    """Several row groups whose lengths are not multiples of the reader's blocks."""
    file = PartFile(log.folder.segment(0), 0, "t")
    for first in range(0, 150_000, 3_000):
        block = [Record(i, {COLLECTION: "c", "k": str(i % 3)}, b"x") for i in range(first, first + 3_000)]
        file.write(encode_block(SOURCE, first, block, None, 0, {}))
    written = file.finish()
    assert written is not None
    batches = read(log.folder, [written.appended(0, None)])
    assert [offset for batch in batches for offset in decode_batch(batch).offsets] == list(range(150_000))


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
    assert "--to-offset 101 --force" in str(caught.value.fix)


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
        assert log.folder.rewind(3) in str(caught.value.fix)
        assert "--to-offset 3 --force" in log.folder.rewind(3)


def test_a_missing_file_whose_name_holds_a_secret_is_named_too(log: LogLab) -> None:
    """A password is a part of its name: who follows the manifest must not take it for one that was replaced."""
    (part,) = log.append(["a"])
    storage.remove(storage.join(log.folder.segment(0), part.name))
    remember([part.name[:8]])
    looks = iter(range(3))

    def manifest(start: int, stop: int | None) -> Sequence[LogPart]:
        next(looks)  # ends a reader that never gives up
        return log.parts()

    with pytest.raises(MissingPartError, match="offsets 0 to 0"):
        list(read_current(log.folder, manifest))


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
