"""The file source with ``header``: the first line of every file is no record; its records carry it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.file_changes import rotate
from lab.file_reading import ENDLESS, MUCH, Reader, append

from conduit_dagster.record import MODE
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit, ReadOptions


def headers(records: list[Any]) -> list[str | None]:
    return [record.metadata.get("file.header") for record in records]


def step(reader: Reader, **more: Any) -> list[tuple[str, str | None]]:
    """Each record of a step with its header."""
    end = reader.source.latest(reader.position, more.pop("limit", MUCH))
    records = reader.records(end, **more)
    reader.position = end
    return list(zip([record.after.decode() for record in records], headers(records), strict=True))


def test_every_file_has_its_own(tmp_path: Path) -> None:
    """Keys are line numbers of the file; an empty file and one with only a header are read as well."""
    (tmp_path / "in").mkdir()
    for name, text in {"1": "a,b\n1,2\n3,4\n", "2": "", "3": "a,b\n", "4": "\ufeffb,a\r\n5,6\r\n"}.items():
        (tmp_path / "in" / name).write_bytes(text.encode())
    reader = Reader(tmp_path, "in/", header="true")
    end = reader.source.latest(reader.position, MUCH)
    records = reader.records(end, 2)
    assert [(record.after, record.key) for record in records] == [(b"1,2", b"2"), (b"3,4", b"3"), (b"5,6\r", b"2")]
    assert headers(records) == ["a,b", "a,b", "b,a"]
    assert reader.source.lag(end) == 0


def test_a_file_that_grows(tmp_path: Path, log: Path) -> None:
    """A half-written header is waited for."""
    reader = Reader(tmp_path, header="true")
    append(log, "a,")
    assert step(reader) == []
    append(log, "b\n")
    assert step(reader) == []
    append(log, "1,2\n3")
    assert step(reader) == [("1,2", "a,b")]
    reader.restart()
    append(log, ",4\n")
    assert step(reader) == [("3,4", "a,b")]
    rotate(log)
    assert [line for line, _ in step(reader)] == [f"new{i}" for i in range(1, 9)]


def test_without_it_a_first_line_is_a_record(tmp_path: Path, log: Path) -> None:
    append(log, "a,b\n1,2\n")
    assert step(Reader(tmp_path)) == [("a,b", None), ("1,2", None)]


@pytest.mark.parametrize("text", ["a,b", "a" * 70_000])
def test_a_header_that_is_never_ended(tmp_path: Path, log: Path, text: str) -> None:
    """It is no record where it is read, and the following lines are read after it."""
    append(log, text)
    reader = Reader(tmp_path, header="true", **ENDLESS)
    assert reader.step(Limit(1, 10), drain=True) == []
    assert reader.source.lag(reader.position) == 0
    append(log, "\n1,2\n")
    assert step(reader) == [("1,2", text)]


def test_a_header_that_is_no_text(tmp_path: Path, log: Path) -> None:
    log.write_bytes("größe\n1\n".encode("latin-1"))
    assert step(Reader(tmp_path, header="true")) == [("1", "gr\ufffd\ufffde")]


@pytest.mark.parametrize("text", ["a" * 2_000_000, "a" * 5_000 + "\n1\n"])
def test_a_header_that_is_too_long(tmp_path: Path, log: Path, text: str) -> None:
    append(log, text)
    with pytest.raises(FatalError, match="longer than"):
        Reader(tmp_path, header="true", **{"max-line": "1000"}).step()


@pytest.mark.parametrize("limit", [Limit(1, 10**9), Limit(4, 10**9), Limit(10**9, 1), Limit(10**9, 9)])
def test_a_limit_counts_records_and_not_headers(tmp_path: Path, limit: Limit) -> None:
    (tmp_path / "in").mkdir()
    for name in "abcdefgh":
        (tmp_path / "in" / name).write_text(f"{name}\n{name}1\n")
    reader, found = Reader(tmp_path, "in/", header="true"), list[int]()
    while lines := step(reader, limit=limit):
        assert all(line.startswith(str(header)) for line, header in lines)
        found.append(len(lines))
    assert sum(found) == 8
    if limit == Limit(4, 10**9):
        assert found == [4, 4]


def test_boundaries(tmp_path: Path, log: Path) -> None:
    """The position after any record, given as a start, reads the rest."""
    append(log, "header\n" + "".join(f"{i}\n" for i in range(20)))
    reader = Reader(tmp_path, header="true")
    start, end = reader.position, reader.source.latest(reader.position, MUCH)
    [split] = reader.source.split(start, end, 1)
    assert split.records == 20
    for block in reader.source.read(split, ReadOptions(block_records=7)):
        for i, record in enumerate(block.records):
            reader.position = reader.source.within(start, end, block.boundary(i))
            rest = reader.records(end)
            assert [int(one.after) for one in rest] == list(range(int(record.after) + 1, 20))
            assert set(headers(rest)) <= {"header"}


def test_a_copy_is_complete_with_its_last_record(tmp_path: Path) -> None:
    """It is not in the last file if that has only a header."""
    (tmp_path / "in").mkdir()
    for name, text in {"orders-1": "h\n1\n2\n", "orders-2": "h\n"}.items():
        (tmp_path / "in" / name).write_text(text)
    reader = Reader(tmp_path, "in/", header="true", collection="^([a-z]+)-")
    records = reader.records(reader.source.latest(reader.position, MUCH), 3)
    assert [record.metadata[MODE] for record in records] == ["copy", "complete"]


@pytest.mark.parametrize("n", [1, 2, 3, 16])
def test_splits_of_a_large_file(tmp_path: Path, log: Path, n: int) -> None:
    """Also when cut again by another process, which has not scanned the file; each reads the header itself."""
    lines = [f"{i} " + "y" * (i % 1000) for i in range(9000)]
    append(log, "\n".join(["header", *lines]) + "\n")
    reader = Reader(tmp_path, header="true")
    end = reader.source.latest(reader.position, MUCH)
    reader.restart()
    records = reader.records(end, n)
    assert [record.after.decode() for record in records] == lines
    assert [int(record.key) for record in records] == list(range(2, 9002))
    assert set(headers(records)) == {"header"}
    splits = reader.source.split(reader.position, end, n)
    assert len(splits) == min(n, 5) and sum(split.records or 0 for split in splits) == 9000


FILES = st.lists(st.lists(st.text("ab,é", max_size=6), max_size=12), min_size=1, max_size=3)


@given(FILES, st.integers(1, 4), st.integers(1, 5), st.integers(1, 60), st.booleans(), st.data())
def test_records_do_not_depend_on_how_files_are_cut(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[str]], n: int, most: int, size: int, restarts: bool, data: st.DataObject,
) -> None:  # fmt: skip
    """For any steps, splits and restarts, and however the files were written."""
    root = tmp_path_factory.mktemp("cut")
    (root / "in").mkdir()
    reader, found = Reader(root, "in/", header="true"), list[tuple[str, str | None]]()
    for name, lines in enumerate(files):
        text = "".join(f"{line}\n" for line in (f"h{name}", *lines)).encode()
        cut = data.draw(st.integers(0, len(text)))
        for piece in (text[:cut], text[cut:]):
            with (root / "in" / str(name)).open("ab") as file:
                file.write(piece)
            while (end := reader.source.latest(reader.position, Limit(most, size))) != reader.position:
                if restarts:
                    reader.restart()
                records = reader.records(end, n)
                found += zip([record.after.decode() for record in records], headers(records), strict=True)
                reader.position = end
    assert found == [(line, f"h{name}") for name, lines in enumerate(files) for line in lines]
