"""The state of collections as far as file sources know: existing data is read, or not yet."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.file_reading import MUCH, Reader
from lab.inbox import WAITS
from lab.kept import MemoryValues, leave_at

from conduit_dagster.connectors.file import file_position
from conduit_dagster.connectors.parquet.source import ParquetSource, ParquetSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions

PATTERN = "^([a-z]+)-"


def modes(reader: Reader) -> dict[str, str]:
    return dict(reader.source.collection_modes(reader.position))


@pytest.mark.parametrize("leaves_at", [1, 10**9])
def test_a_collection_is_complete_once_all_of_its_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_at: int
) -> None:
    """Whether or not the files have left the position; a file without a collection does not count."""
    leave_at(monkeypatch, leaves_at)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("bills-1", "orders-1", "orders-2", "7"):
        (folder / name).write_text("1\n2\n")
    reader = Reader(tmp_path, "in/", MemoryValues(), collection=PATTERN, **WAITS)
    assert modes(reader) == {"bills": "copy", "orders": "copy"}
    seen = []
    while reader.step(Limit(3, 10**9)):
        seen.append(modes(reader))
    assert seen == [
        {"bills": "copy", "orders": "copy"},
        {"bills": "complete", "orders": "copy"},
        {"bills": "complete", "orders": "complete"},
    ]
    (folder / "orders-3").write_text("3\n")
    (folder / "trips-1").write_text("3\n")
    assert modes(reader) == {"bills": "complete", "orders": "copy", "trips": "copy"}
    while reader.step():
        pass
    reader.restart()
    assert set(modes(reader).values()) == {"complete"}


def test_a_followed_file_has_one_collection_under_all_its_names(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("1\n2\n")
    reader = Reader(tmp_path, "app.log", collection="app")
    assert modes(reader) == {"app": "copy"}
    reader.step()
    assert modes(reader) == {"app": "complete"}
    log.rename(tmp_path / "app.log.1")
    log.write_text("3\n")
    assert modes(reader) == {"app": "copy"}


def test_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_at(monkeypatch, 1)
    (tmp_path / "in").mkdir()
    context = ConnectorContext("p", "in", str(tmp_path), Clock(7), "exactly-once")
    source = ParquetSource(ParquetSourceSettings(path="in/", collection=PATTERN), context)
    source.attach_kept(MemoryValues().access)
    for name in ("bills-1", "orders-1", "orders-2"):
        pq.write_table(pa.table({"name": [name]}), tmp_path / "in" / f"{name}.parquet")
    position, seen = source.initial(), [dict(source.collection_modes(source.initial()))]
    for _ in range(3):
        position = source.latest(position, Limit(1, 10**9))
        seen.append(dict(source.collection_modes(position)))
    assert [one["bills"] for one in seen] == ["copy", "complete", "complete", "complete"]
    assert [one["orders"] for one in seen] == ["copy", "copy", "copy", "complete"]


def told(reader: Reader, limit: Limit = MUCH, drain: bool = False, n: int = 1, **options: int) -> list[str]:
    """The modes that the records of one step have."""
    end = reader.source.latest(reader.position, limit, reader.source.horizon() if drain else None)
    records = reader.records(end, n, **options)
    reader.position = json.loads(json.dumps(end))
    return [record.metadata.get("conduit.mode", "") for record in records]


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("leaves_at", [1, 10**9])
def test_the_last_record_of_a_copy_says_that_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_at: int, drain: bool
) -> None:
    """However the lines are cut into steps, splits and blocks; later lines have no mode, which means sync."""
    leave_at(monkeypatch, leaves_at)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("bills-1", "orders-1", "bills-2", "7", "orders-2"):
        (folder / name).write_text("1\n2\n")
    (folder / "orders-3").write_text("")
    expected = ["", "", "copy", "copy", "copy", "complete", "copy", "copy", "copy", "complete"]
    for most in (1, 2, 3, 6, 100):
        for n in (1, 4):
            for block in (1, 2, 100):
                reader = Reader(tmp_path, "in/", MemoryValues(), collection=PATTERN, **WAITS)
                found = list[str]()
                while more := told(reader, Limit(most, 10**9), drain, n, block_records=block):
                    found += more
                    reader.restart()
                assert found == expected
    (folder / "orders-4").write_text("3\n4\n")
    with (folder / "bills-1").open("a") as file:
        file.write("3\n")
    (folder / "trips-1").write_text("1\n2\n")
    assert told(reader, MUCH, drain) == ["", "", "", "copy", "complete"]


def test_a_file_that_is_read_in_several_steps(tmp_path: Path) -> None:
    """The limit may fall on its last line; a half line is not read yet, and belongs to the copy."""
    log = tmp_path / "app.log"
    log.write_text("1\n2\n3\n4\n")
    reader = Reader(tmp_path, "app.log", collection="app")
    assert [told(reader, Limit(2, 10**9)) for _ in range(3)] == [["copy", "copy"], ["copy", "complete"], []]
    with log.open("a") as file:
        file.write("5\n")
    assert told(reader) == [""]
    log = tmp_path / "half.log"
    log.write_text("1\n2\n3")
    reader = Reader(tmp_path, "half.log", collection="half")
    assert told(reader) == ["copy", "copy"]
    log.write_text("1\n2\n3\n4\n")
    assert told(reader) == ["copy", "complete"]


def test_a_step_that_is_cut_or_read_again_with_others(tmp_path: Path) -> None:
    """A copy ends only after its last record. Its end is also found inside a range of several steps."""
    log = tmp_path / "app.log"
    log.write_text("1\n2\n3\n")
    reader = Reader(tmp_path, "app.log", collection="app")
    start = reader.position
    assert told(reader) == ["copy", "copy", "complete"]
    end, source = reader.position, reader.source
    [split] = source.split(start, end, 1)
    [block, last] = source.read(split, ReadOptions())
    assert isinstance(block, Block)
    assert isinstance(last, Block)
    whole = source.within(start, end, last.boundary(0))
    assert (whole["copied"], source.place(whole)) == (end["copied"], source.place(end))
    reader.position = json.loads(json.dumps(source.within(start, end, block.boundary(1))))
    assert told(reader) == ["complete"]
    with log.open("a") as file:
        file.write("4\n5\n")
    assert told(reader) == ["", ""]
    later, reader.position = reader.position, start
    assert [record.metadata.get("conduit.mode", "") for record in reader.records(later)] == [
        *["copy", "copy", "complete"],
        *["", ""],
    ]


def test_a_position_holds_a_limited_number_of_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_position, "MOST_ENDS", 2)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a-1", "b-1", "c-1"):
        (folder / name).write_text("1\n2\n")
    reader = Reader(tmp_path, "in/", MemoryValues(), collection=PATTERN, **WAITS)
    assert [told(reader, Limit(2, 10**9)) for _ in range(3)] == [["copy", "complete"], ["copy", "complete"], ["", ""]]
    assert len(reader.position["copied"]) == 2


def test_without_a_collection_there_are_no_modes(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("1\n2\n")
    reader = Reader(tmp_path, "app.log")
    assert told(reader) == ["", ""]
    assert set(reader.position) == {"seen", "files"}
