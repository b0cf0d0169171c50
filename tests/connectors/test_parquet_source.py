"""The parquet source: which rows a range contains, and what happens to files that come, change and go."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.file_rights import obeyed
from lab.parquet_inbox import ALL
from lab.parquet_reading import make, numbers, read, write
from structlog.testing import capture_logs

from conduit_dagster.connectors.file import folder_scan
from conduit_dagster.connectors.parquet import footer, parquet_scan
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Limit, ReadOptions


def test_files_by_name_and_hidden_ones_not(tmp_path: Path) -> None:
    for name, first in (("b", 10), ("a", 0), (".c", 20), ("_d", 30)):
        write(tmp_path / "in" / f"{name}.parquet", range(first, first + 10))
    (tmp_path / "in" / "_SUCCESS").touch()
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    assert numbers(read(source, source.initial(), end)) == list(range(20))
    assert source.latest(end, ALL) == end
    assert (source.lag(source.initial()), source.lag(end)) == (20, 0)


def test_a_check_reads_every_footer(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", range(10))
    write(tmp_path / "in" / "b.parquet", range(10))
    source = make(tmp_path)
    source.check()
    (tmp_path / "in" / "b.parquet").chmod(0)
    with obeyed(), pytest.raises(TransientError, match="no permission"):
        source.check()
    (tmp_path / "in" / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(TransientError) as raised:
        source.check()
    assert raised.value.code == "parquet.unreadable"


def test_a_partitioned_dataset_is_not_read_in_silence(tmp_path: Path) -> None:
    """The glob that the warning names reads it. A file beside the folders is read, and nothing is said."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "day=1" / "part-0.parquet", range(10))
    source = make(tmp_path)
    with capture_logs() as logs:
        assert source.lag(source.latest(source.initial(), ALL)) == 0
    [warning] = logs
    assert (warning["log_level"], warning["path"], warning["fix"]) == ("warning", "in/*", "path: in/*/*")
    source = make(tmp_path, warning["fix"].removeprefix("path: "))
    assert numbers(read(source, source.initial(), source.latest(source.initial(), ALL))) == list(range(10))
    write(tmp_path / "in" / "one.parquet", range(10, 20))
    source = make(tmp_path)
    with capture_logs() as logs:
        assert numbers(read(source, source.initial(), source.latest(source.initial(), ALL))) == list(range(10, 20))
    assert logs == []


def test_what_comes_later_follows(tmp_path: Path) -> None:
    """Also under a name that sorts before those already read; deleted files are forgotten."""
    write(tmp_path / "in" / "m.parquet", range(10))
    source = make(tmp_path)
    first = source.latest(source.initial(), ALL)
    write(tmp_path / "in" / "a.parquet", range(10, 20))
    second = make(tmp_path).latest(first, ALL)
    assert numbers(read(source, first, second)) == list(range(10, 20))
    (tmp_path / "in" / "m.parquet").unlink()
    write(tmp_path / "in" / "b.parquet", range(20, 30))
    third = make(tmp_path).latest(second, ALL)
    assert [file["name"] for file in third["files"]] == ["a.parquet", "b.parquet"]
    assert numbers(read(source, second, third)) == list(range(20, 30))


def test_the_lag_reads_the_footers_of_unread_files_once_and_none_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: with more than are kept in memory, each look read all of them again."""
    monkeypatch.setattr(parquet_scan, "_KEPT", 1)
    monkeypatch.setattr(folder_scan, "EXAMINED_AT_ONCE", 1)
    for first in range(0, 50, 10):
        write(tmp_path / "in" / f"{first:02d}.parquet", range(first, first + 10))
    source, opened = make(tmp_path), list[str]()
    begun = source.latest(source.initial(), Limit(15, 10**9))
    opens = vars(footer)["_opened"]
    monkeypatch.setattr(footer, "_opened", lambda url: opened.append(url[-10:]) or opens(url))
    observer = make(tmp_path)
    assert observer.lag(begun) == 35
    assert observer.lag(begun) == 35
    unread = ["20.parquet", "30.parquet", "40.parquet"]
    assert [name for name in opened if name in unread] == unread
    monkeypatch.setattr(footer, "_mark", None)
    assert make(tmp_path).lag(source.initial()) == 50
    write(tmp_path / "in" / "20.parquet", range(7))
    (tmp_path / "in" / "40.parquet").unlink()
    monkeypatch.undo()
    assert observer.lag(begun) == 35 - 3 - 10
    assert observer.lag(make(tmp_path).latest(begun, ALL)) == 0


def test_the_horizon_leaves_out_what_comes_later(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", range(10))
    source = make(tmp_path)
    horizon = source.horizon()
    write(tmp_path / "in" / "b.parquet", range(10, 20))
    end = source.latest(source.initial(), ALL, horizon)
    assert numbers(read(source, source.initial(), end)) == list(range(10))
    assert source.latest(end, ALL, horizon) == end
    assert source.latest(end, ALL) != end


def test_the_horizon_leaves_out_what_replaces_a_file_and_not_what_only_gets_other_rights(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / "in" / f"{name}.parquet", range(10))
    source = make(tmp_path)
    horizon = source.horizon()
    (tmp_path / "in" / "a.parquet").chmod(0o600)
    write(tmp_path / "in" / ".new", range(10, 20))
    (tmp_path / "in" / ".new").replace(tmp_path / "in" / "b.parquet")
    end = source.latest(source.initial(), ALL, horizon)
    assert numbers(read(source, source.initial(), end)) == list(range(10))
    assert numbers(read(source, end, source.latest(end, ALL))) == list(range(10, 20))


def test_another_content_under_a_name_is_another_file(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", range(10))
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    write(tmp_path / "in" / "a.parquet", range(50, 60))
    later = make(tmp_path).latest(end, ALL)
    assert numbers(read(source, end, later)) == list(range(50, 60))


@pytest.mark.parametrize("gone", [True, False])
def test_a_file_that_was_begun_and_is_gone_or_changed_is_named(tmp_path: Path, gone: bool) -> None:
    path = tmp_path / "in" / "a.parquet"
    write(path, range(10))
    source = make(tmp_path)
    half = source.latest(source.initial(), Limit(5, 10**9))
    whole = source.latest(half, ALL)
    source.verify(source.initial(), whole)
    if gone:
        path.unlink()
    else:
        write(path, range(99))
    for look in (
        lambda: make(tmp_path).latest(half, ALL),
        lambda: make(tmp_path).split(source.initial(), whole, 2),
        lambda: make(tmp_path).verify(source.initial(), whole),
    ):
        with pytest.raises(FatalError) as raised:
            look()
        assert raised.value.code == "parquet.range_gone"
        assert "a.parquet" in raised.value.message


def test_what_is_no_parquet_waits_and_is_named(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", range(10))
    (tmp_path / "in" / "b.parquet").write_bytes(b"PAR1 and then nothing")
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    # what comes before it is read first
    assert numbers(read(source, source.initial(), end, 1)) == list(range(10))
    with pytest.raises(TransientError) as raised:
        source.latest(end, ALL)
    assert raised.value.code == "parquet.unreadable"
    assert "b.parquet" in raised.value.message
    with pytest.raises(TransientError) as raised:
        make(tmp_path, "not-there.parquet").latest(make(tmp_path).initial(), ALL)
    assert raised.value.code == "parquet.missing"


def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    """The footer is whole, so the rows are planned; it is the task that meets the page."""
    path = tmp_path / "in" / "a.parquet"
    write(path, range(100_000))
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    with pytest.raises(TransientError) as raised:
        read(source, source.initial(), end)
    assert (raised.value.code, raised.value.place) == ("parquet.unreadable", str(path))
    assert raised.value.fix


@pytest.mark.parametrize("rows", [True, False])
def test_damage_that_only_a_checksum_shows_is_named(tmp_path: Path, rows: bool) -> None:
    """Another value was read, as if it were the file's."""
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["this is the text of a row"]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    whole = path.read_bytes()
    # with its length before it, as in the page itself
    damaged = whole.replace(b"\x19\0\0\0this", b"\x19\0\0\0that")
    assert damaged != whole
    path.write_bytes(damaged)
    source = make(tmp_path, "a.parquet")
    with pytest.raises(TransientError) as raised:
        read(source, source.initial(), source.latest(source.initial(), ALL), rows=rows)
    assert (raised.value.code, raised.value.place) == ("parquet.unreadable", str(path))
    assert "checksum" in raised.value.message


def test_an_empty_file_is_read(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", range(0))
    write(tmp_path / "in" / "b.parquet", range(3))
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    assert numbers(read(source, source.initial(), end, 2)) == [0, 1, 2]
    assert source.latest(end, ALL) == end


def test_keys_positions_and_metadata(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", range(2))
    source = make(tmp_path, key="i, j")
    (split,) = source.split(source.initial(), source.latest(source.initial(), ALL), 1)
    (block,) = source.read(split, ReadOptions())
    assert [record.key for record in block.records] == [{"i": 0, "j": None}, {"i": 1, "j": None}]
    assert [record.position for record in block.records] == ["0:a.parquet:1", "0:a.parquet:2"]
    assert block.records[0].metadata["file.path"] == "in/a.parquet"
    assert block.again is not None
    assert block.again([1]) == [block.records[1]]


def test_files_of_one_name_in_two_folders(tmp_path: Path) -> None:
    for folder, first in (("a", 0), ("b", 3)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "part-0.parquet", range(first, first + 3))
    source = make(tmp_path, "*/part-*.parquet")
    end = source.latest(source.initial(), ALL)
    assert numbers(read(source, source.initial(), end)) == list(range(6))
    assert [file["name"] for file in end["files"]] == ["a/part-0.parquet", "b/part-0.parquet"]


def test_the_same_footer_with_other_values_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"i": [10, 20, 30]}), path)
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    pq.write_table(pa.table({"i": [10, 25, 30]}), path)
    later = make(tmp_path).latest(end, ALL)
    assert numbers(read(make(tmp_path), end, later)) == [10, 25, 30]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 25), min_size=1, max_size=4),
    group=st.integers(1, 9),
    most=st.integers(1, 20),
    size_limit=st.integers(1, 3_000),
    n=st.integers(1, 6),
    rows=st.booleans(),
)
def test_every_row_once_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    group: int,
    most: int,
    size_limit: int,
    n: int,
    rows: bool,
) -> None:
    """Steps of a number of rows, in a number of splits; reading continues at the boundary after any record."""
    root, first = tmp_path_factory.mktemp("cut"), 0
    for number, size in enumerate(sizes):
        write(root / "in" / f"{number}.parquet", range(first, first + size), group)
        first += size
    source, found = make(root), list[int]()
    start = source.initial()
    while (end := source.latest(start, Limit(most, size_limit))) != start:
        splits = source.split(start, end, n)
        places = [split.ordinal for split in splits]
        step: list[int] = []
        for split in splits:
            assert split.ordinal == len(step)
            for block in source.read(split, ReadOptions(rows=rows, block_records=4)):
                for i, record in enumerate(block.records):
                    assert isinstance(record.after, dict)
                    cut = source.within(start, end, block.boundary(i))
                    assert numbers(read(source, start, cut))[-1] == record.after["i"]
                    step.append(record.after["i"])
        assert len(step) <= most and places == sorted(places)
        found += step
        start = end
    assert found == list(range(first))
