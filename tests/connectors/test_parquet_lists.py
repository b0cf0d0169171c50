"""Finished Parquet files leave the position, into lists: the same records and places come as if they stayed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.kept import MemoryValues, leave_at

from conduit_dagster.connectors.parquet import parquet_folder, parquet_scan
from conduit_dagster.connectors.parquet.source import ParquetSource, ParquetSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions
from conduit_dagster.sdk.source import KeptValues

NEVER = 10**9
ALL = Limit(10**9, 10**12)


class Reader:
    """A source whose finished files leave the position once there are so many, and where it is."""

    def __init__(self, root: Path, leaves_at: int, kept: MemoryValues | None) -> None:
        self.root, self.leaves_at, self.kept = root, leaves_at, kept
        self.restart()
        self.position: Any = self.source.initial()
        self.earlier = [self.position]

    def restart(self) -> None:
        self.horizon: Any = None
        context = ConnectorContext("p", "in", str(self.root), Clock(7), "exactly-once")
        self.source = ParquetSource(ParquetSourceSettings(path="in/"), context)
        if self.kept is not None:
            self.source.attach_kept(self.kept.access)

    def latest(self, limit: Limit = ALL) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            leave_at(patch, self.leaves_at)
            return json.loads(json.dumps(self.source.latest(self.position, limit, self.horizon)))

    def records(self, start: Any, end: Any) -> list[tuple[Any, Any, Any]]:
        """The documents of a range, their positions and their boundaries."""
        found: list[tuple[Any, Any, Any]] = []
        for split in self.source.split(start, end, 2):
            for block in self.source.read(split, ReadOptions(block_records=3)):
                assert isinstance(block, Block)
                found += [(r.after, r.position, block.boundary(i)) for i, r in enumerate(block.records)]
        return found

    def step(self, limit: Limit = ALL, cut: int | None = None) -> list[tuple[Any, Any]]:
        """Read one step, or up to its record ``cut``."""
        start, end = self.position, self.latest(limit)
        if end == start:
            return []
        self.source.verify(start, end)
        records = self.records(start, end)
        if cut is not None and cut < len(records):
            end = json.loads(json.dumps(self.source.within(start, end, records[cut][2])))
            records = records[: cut + 1]
        self.position = end
        self.earlier.append(end)
        return [(after, position) for after, position, _ in records]

    @property
    def place(self) -> Any:
        return self.source.place(self.position)

    @property
    def names(self) -> list[str]:
        return [file["name"] for file in self.position["files"]]


class Inbox:
    """A folder whose files are put into their places at once."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "in"
        self.folder.mkdir()
        self.rows = 0
        self.versions: list[bytes] = []

    def put(self, name: str, rows: int) -> None:
        table = pa.table({"i": list(range(self.rows, self.rows + rows))})
        pq.write_table(table, self.folder / ".new", row_group_size=2)
        self.rows += rows
        self.versions.append((self.folder / ".new").read_bytes())
        (self.folder / ".new").replace(self.folder / name)

    def put_back(self, name: str, version: int) -> None:
        if self.versions:
            (self.folder / ".new").write_bytes(self.versions[version % len(self.versions)])
            (self.folder / ".new").replace(self.folder / name)


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)


@pytest.fixture
def reader(tmp_path: Path, inbox: Inbox) -> Reader:
    return Reader(tmp_path, 1, MemoryValues())


def values(records: list[tuple[Any, Any]]) -> list[int]:
    return [after["i"] for after, _ in records]


def test_an_unchanged_finished_file_is_not_opened_again(
    inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in a new process; a touched one is, and is the same file."""
    inbox.put("a", 3)
    inbox.put("b", 2)
    reader.step()
    inbox.put("c", 1)
    assert values(reader.step()) == [5]
    assert reader.names == ["c"]
    opened, read_footer = list[str](), parquet_scan.read_footer
    monkeypatch.setattr(parquet_scan, "read_footer", lambda url: (opened.append(Path(url).name), read_footer(url))[1])
    reader.restart()
    assert reader.source.lag(reader.position) == 0
    assert opened == ["c"]
    reader.source.horizon()
    assert opened == ["c"]
    (inbox.folder / "a").touch()
    assert reader.latest() == reader.position
    assert opened == ["c", "a"]
    inbox.put("d", 1)
    assert values(reader.step()) == [6]
    reader.restart()
    opened.clear()
    assert reader.latest() == reader.position
    assert opened == ["d"]


def test_many_finished_files_are_examined_in_turns(
    tmp_path: Path, inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What replaces one, or is gone, shows at once; what is written over one in its turn, and in a drained run."""
    monkeypatch.setattr(parquet_folder, "EXAMINED_AT_ONCE", 2)
    for name in "abcdefg":
        inbox.put(name, 1)
    reader.step()
    inbox.put("z", 1)
    reader.step()
    looked, look = list[str](), parquet_folder.examine
    monkeypatch.setattr(parquet_folder, "examine", lambda path: (looked.append(Path(path).name), look(path))[1])
    turns = list[set[str]]()
    for _ in range(5):
        looked.clear()
        assert reader.latest() == reader.position
        turns.append(set(looked))
    assert [len(turn) for turn in turns] == [8, 3, 3, 3, 2]
    assert set.union(*turns[1:]) == {*"abcdefg", "z"}
    inbox.put("c", 1)
    assert values(reader.step()) == [8]
    (inbox.folder / "d").unlink()
    inbox.put("y", 1)
    assert values(reader.step()) == [9]
    inbox.put_back("d", 3)
    assert values(reader.step()) == [3]
    for drained in (False, True):
        reader.restart()
        reader.latest()
        (inbox.folder / "e").write_bytes(inbox.versions[int(drained)])
        horizon = reader.source.horizon() if drained else None
        looks = 0
        while (end := reader.source.latest(reader.position, ALL, horizon)) == reader.position:
            looks += 1
            assert looks < 8
        assert [one[0]["i"] for one in reader.records(reader.position, end)] == [int(drained)]
        assert looks == 0 or not drained
        reader.position = json.loads(json.dumps(end))


def test_a_run_that_drains_opens_what_is_unread_only(
    inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new process: its horizon is no reason to read the footers of finished files."""
    for name in "abc":
        inbox.put(name, 2)
        reader.step()
    inbox.put("d", 1)
    opened, read_footer = list[str](), parquet_scan.read_footer
    monkeypatch.setattr(parquet_scan, "read_footer", lambda url: (opened.append(Path(url).name), read_footer(url))[1])
    reader.restart()
    reader.horizon = reader.source.horizon()
    assert values(reader.step()) == [6]
    assert reader.latest() == reader.position
    assert opened == ["c", "d"]


def test_a_horizon_leaves_out_what_is_written_later(inbox: Inbox, reader: Reader) -> None:
    """New files, and others in the places of old ones; a file of which rows were read is read to its end."""
    for name in "abc":
        inbox.put(name, 2)
    reader.horizon = reader.source.horizon()
    assert values(reader.step(Limit(1, 10**9))) == [0]
    inbox.put("b", 2)
    inbox.put("d", 2)
    (inbox.folder / "a").touch()
    assert values(reader.step()) == [1, 4, 5]
    assert reader.step() == []
    reader.horizon = reader.source.horizon()
    assert values(reader.step()) == [6, 7, 8, 9]


def test_splits_are_made_without_listing_the_folder(
    inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a step that follows another one in flight; a new process lists it once for each range."""
    for name in "abcd":
        inbox.put(name, 2)
    lists, listing = list[str](), parquet_folder.ListedFiles.files

    def counted(self: parquet_folder.ListedFiles, wanted: Any, finished: Any) -> parquet_folder.Listed:
        lists.append("in/")
        return listing(self, wanted, finished)

    monkeypatch.setattr(parquet_folder.ListedFiles, "files", counted)
    start = reader.position
    first = reader.position = reader.latest(Limit(4, 10**9))
    second = reader.latest()
    lists.clear()
    for begin, end, rows in ((start, first, [0, 1, 2, 3]), (first, second, [4, 5, 6, 7])):
        assert [after["i"] for after, _, _ in reader.records(begin, end)] == rows
        reader.source.verify(begin, end)
    assert lists == []
    reader.restart()
    reader.source.verify(first, second)
    assert lists == ["in/"]
    (inbox.folder / "d").unlink()
    with pytest.raises(FatalError) as gone:
        reader.source.verify(first, second)
    assert gone.value.code == "parquet.range_gone"


def test_counts_say_how_many_files_were_read(inbox: Inbox, reader: Reader) -> None:
    """Those in lists as well: they are not in the position that is shown."""
    inbox.put("a", 2)
    reader.step()
    inbox.put("b", 2)
    reader.step()
    inbox.put("c", 2)
    reader.step(Limit(1, 10**9))
    assert reader.names == ["c"]
    assert reader.source.counts(reader.position) == {"files_read": 2, "files_unread": 1}


def test_a_copy_that_comes_back_is_read_again(inbox: Inbox, reader: Reader) -> None:
    inbox.put("a", 3)
    reader.step()
    inbox.put("b", 1)
    reader.step()
    (inbox.folder / "a").unlink()
    inbox.put("c", 1)
    assert values(reader.step()) == [4]
    inbox.put_back("a", 0)
    assert values(reader.step()) == [0, 1, 2]


def test_ranges_over_many_steps(tmp_path: Path, inbox: Inbox, reader: Reader) -> None:
    """As a rewind asks for them, in a new process: forwards, and backwards nothing."""
    for number in range(9):
        inbox.put(str(number), 2)
        reader.step()
    for begin in (0, 3, 8):
        reader.restart()
        start, end = reader.earlier[begin], reader.earlier[-1]
        found = [after["i"] for after, _, _ in reader.records(start, end)]
        assert found == list(range(2 * begin, 18))
        reader.source.verify(start, end)
        assert reader.source.split(end, start, 1) == []


def test_a_file_that_is_gone_stays_in_the_place(inbox: Inbox, reader: Reader) -> None:
    """A step's end and its last record are the same boundary, though only the end has forgotten the file."""
    inbox.put("a", 3)
    reader.step()
    (inbox.folder / "a").unlink()
    inbox.put("b", 1)
    start, end = reader.position, reader.latest()
    assert [file["name"] for file in end["files"]] == ["b"]
    boundary = reader.records(start, end)[-1][2]
    assert reader.source.place(reader.source.within(start, end, boundary)) == reader.source.place(end)


def test_reading_verbs_read_lists_and_write_none(inbox: Inbox, reader: Reader) -> None:
    inbox.put("a", 3)
    reader.step()
    inbox.put("b", 1)
    reader.step()
    inbox.put("c", 2)
    kept = reader.kept
    assert kept is not None
    written = kept.written
    reader.restart()
    reader.source.attach_kept(KeptValues(kept.get, None))
    assert reader.source.lag(reader.position) == 2
    assert [file["name"] for file in reader.latest()["files"]] == ["b", "c"]
    (inbox.folder / "b").unlink()
    assert kept.written == written
    end = reader.latest()
    reader.restart()
    assert reader.source.place(reader.latest()) == reader.source.place(end)
    reader.source.attach_kept(KeptValues(kept.get, None))
    assert values(reader.step()) == [4, 5]


def test_missing_list_says_what_to_do(inbox: Inbox, reader: Reader) -> None:
    for name in "ab":
        inbox.put(name, 1)
        reader.step()
    assert reader.kept is not None
    reader.kept.values.clear()
    reader.restart()
    with pytest.raises(FatalError) as caught:
        reader.latest()
    assert caught.value.code == "file.list_gone"


def test_an_old_position_goes_on(tmp_path: Path, inbox: Inbox) -> None:
    """With its old place, of which names of stored plans are made."""
    before, after = Reader(tmp_path, 1, None), Reader(tmp_path, 1, MemoryValues())
    inbox.put("a", 2)
    before.step()
    assert before.position["files"] and "read" not in before.position
    assert after.source.place(before.position) == before.position
    after.position = before.position
    inbox.put("b", 2)
    start, end = after.position, after.latest()
    boundary = after.records(start, end)[-1][2]
    assert after.source.place(after.source.within(start, end, boundary)) == after.source.place(end)
    assert values(after.step()) == [2, 3]
    assert after.names == ["b"]


@pytest.mark.parametrize("leaves_at", [1, 5, NEVER])
def test_the_place_of_a_boundary_does_not_depend_on_the_steps(tmp_path: Path, inbox: Inbox, leaves_at: int) -> None:
    for number in range(12):
        inbox.put(f"{number:02d}", number % 4 + 1)
    places = list[Any]()
    for most in (1, 7, 1_000):
        reader = Reader(tmp_path, leaves_at, MemoryValues())
        while reader.step(Limit(most, 10**9)):
            pass
        places.append(reader.place)
    assert places[0] == places[1] == places[2]
    assert places[0]["seen"] == 12


def test_what_a_step_stores_does_not_grow(inbox: Inbox, reader: Reader) -> None:
    """400 files, ten a step."""
    reader.leaves_at, sizes = 1, list[int]()
    for step in range(40):
        for number in range(10):
            inbox.put(f"{step:02d}-{number}", 1)
        assert len(reader.step()) == 10
        sizes.append(len(json.dumps(reader.position)))
    assert max(sizes) < sizes[0] + 8 * 80
    assert reader.position["seen"] == 400


FILES = st.integers(0, 3)
MOVES = st.one_of(
    st.tuples(st.just("put"), FILES, st.integers(0, 4)),
    st.tuples(st.just("put"), FILES, st.integers(1, 4)),
    st.tuples(st.just("delete"), FILES, st.just(0)),
    st.tuples(st.just("put back"), FILES, st.integers(0, 5)),
    st.tuples(st.just("touch"), FILES, st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
    st.tuples(st.just("drain"), st.just(0), st.just(0)),
    st.tuples(st.just("go on"), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("cut"), st.integers(2, 9), st.integers(0, 5)),
    st.tuples(st.just("back"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("range"), st.integers(1, 6), st.just(0)),
)


def _outcome(work: Any) -> Any:
    """What was returned, or the code of the error: a partly read file may be gone."""
    try:
        return work()
    except FatalError as error:
        return error.code


def _move(inbox: Inbox, readers: list[Reader], kind: str, first: int, second: int) -> None:
    name = str(first)
    if kind == "put":
        inbox.put(name, second)
    elif kind == "put back":
        inbox.put_back(name, second)
    elif kind == "delete":
        (inbox.folder / name).unlink(missing_ok=True)
    elif kind == "touch" and (inbox.folder / name).exists():
        (inbox.folder / name).touch()
    for reader in readers:
        if kind == "restart":
            reader.restart()
        elif kind == "drain":
            reader.horizon = reader.source.horizon()
        elif kind == "go on":
            reader.horizon = None
        elif kind == "back":
            reader.position = reader.earlier[-1 - first % len(reader.earlier)]


def compare(moves: list[tuple[str, int, int]]) -> None:
    """Three readers: files leave the position of one at once, of another never, and the third has no state store."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        inbox = Inbox(root)
        readers = [Reader(root, 1, MemoryValues()), Reader(root, NEVER, MemoryValues()), Reader(root, 1, None)]
        for kind, first, second in moves:
            _move(inbox, readers, kind, first, second)
            if kind in ("step", "cut"):
                cut = second if kind == "cut" else None
                steps = [_outcome(lambda r=r: r.step(Limit(first, 10**9), cut)) for r in readers]  # noqa: B023
                assert steps[0] == steps[1] == steps[2]
            elif kind == "range":
                pairs = [(r.earlier[-1 - first % len(r.earlier)], r.position) for r in readers]
                ranges = [
                    _outcome(lambda r=r, pair=pair: [one[:2] for one in r.records(*pair)])
                    for r, pair in zip(readers, pairs, strict=True)
                ]
                assert ranges[0] == ranges[1] == ranges[2]
            assert readers[0].place == readers[1].place
            lags = [_outcome(lambda r=r: r.source.lag(r.position)) for r in readers]
            assert lags[0] == lags[1] == lags[2]


HISTORIES = st.lists(MOVES, min_size=10, max_size=40)


@settings(max_examples=40)
@given(moves=HISTORIES)
def test_random_histories(moves: list[tuple[str, int, int]]) -> None:
    """New files, deletions, replacements, returns, restarts, cut steps, rewinds and drains, with lists and without."""
    compare(moves)


@pytest.mark.slow
@settings(max_examples=400)
@given(moves=HISTORIES)
def test_many_random_histories(moves: list[tuple[str, int, int]]) -> None:
    """As above."""
    compare(moves)
