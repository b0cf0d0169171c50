"""The parquet source: the rows of a range are those of the planned file, whatever happens to its name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.elsewhere import Elsewhere

from conduit_dagster.connectors.parquet import footer, parquet_scan
from conduit_dagster.connectors.parquet.source import ParquetSource, ParquetSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions, Split

ALL = Limit(10**9, 10**12)
OLD, NEW = list(range(10)), list(range(50, 60))


def make(root: Path, path: str = "in") -> ParquetSource:
    context = ConnectorContext("p", "in", str(root), Clock(7), "exactly-once")
    return ParquetSource(ParquetSourceSettings(path=path), context)


def write(path: Path, numbers: list[int]) -> None:
    """Replace it with a file at once."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"i": numbers}), path.with_name(".new"), row_group_size=4)
    path.with_name(".new").replace(path)


def rows(source: ParquetSource, splits: list[Split]) -> list[int]:
    blocks = [block for split in splits for block in source.read(split, ReadOptions(block_records=3))]
    assert all(isinstance(block, Block) for block in blocks)
    found: list[Any] = [record.after for block in blocks for record in block.records]
    return [document["i"] for document in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "in" / "a.parquet"
    write(found, OLD)
    return found


def test_a_file_that_is_replaced_between_plan_and_task(tmp_path: Path, path: Path) -> None:
    """Even with rows that fit: the task does not read them, and the plan is refused."""
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    splits = source.split(source.initial(), end, 3)
    write(path, NEW)
    with pytest.raises(TransientError) as raised:
        rows(source, splits)
    assert raised.value.code == "file.moved"
    with pytest.raises(FatalError) as gone:
        source.verify(source.initial(), end)
    assert gone.value.code == "parquet.range_gone"


def test_a_file_that_is_replaced_and_put_back(tmp_path: Path, path: Path) -> None:
    """Afterwards everything is as before: only what the task itself opened tells."""
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    splits = source.split(source.initial(), end, 1)
    path.rename(path.with_name(".kept"))
    write(path, NEW)
    with pytest.raises(TransientError, match="was replaced while it was to be read"):
        rows(source, splits)
    path.with_name(".kept").replace(path)
    source.verify(source.initial(), end)
    assert rows(source, splits) == OLD


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path, path: Path) -> None:
    source = make(tmp_path)
    [split] = source.split(source.initial(), source.latest(source.initial(), ALL), 1)
    blocks = source.read(split, ReadOptions(block_records=3))
    found: list[Any] = list(next(blocks).records)
    write(path, NEW)
    found += [record for block in blocks for record in block.records]
    assert [record.after["i"] for record in found] == OLD


def test_the_same_content_in_another_file_is_read(tmp_path: Path, path: Path) -> None:
    """A file copied over itself: its mark tells, and is taken from what is read."""
    source = make(tmp_path)
    splits = source.split(source.initial(), source.latest(source.initial(), ALL), 2)
    write(path, OLD)
    assert rows(source, splits) == OLD


def test_a_plan_of_the_version_before(tmp_path: Path, path: Path) -> None:
    """It does not say what the file looked like: its mark is taken."""
    source = make(tmp_path)
    splits = source.split(source.initial(), source.latest(source.initial(), ALL), 1)
    for split in splits:
        del split.detail["seen"]
    assert rows(source, splits) == OLD
    write(path, NEW)
    with pytest.raises(TransientError):
        rows(source, splits)


def test_a_footer_is_remembered_of_the_file_that_was_opened(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is given to another file between listing and opening; then the first one is put back."""
    source, read_footer = make(tmp_path), parquet_scan.read_footer

    def replaced(url: str) -> Any:
        path.rename(path.with_name(".kept"))
        write(path, NEW)
        return read_footer(url)

    with monkeypatch.context() as patch:
        patch.setattr(parquet_scan, "read_footer", replaced)
        end = source.latest(source.initial(), ALL)
    assert rows(source, source.split(source.initial(), end, 1)) == NEW
    path.with_name(".kept").replace(path)
    later = source.latest(end, ALL)
    assert rows(source, source.split(end, later, 1)) == OLD


def test_a_file_that_changes_while_its_footer_is_read(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = footer._mark

    def touched(file: Any) -> str:
        os.utime(path, ns=(1, 1))
        return mark(file)

    monkeypatch.setattr(footer, "_mark", touched)
    with pytest.raises(TransientError, match="it changes while it is looked at") as raised:
        make(tmp_path).latest(make(tmp_path).initial(), ALL)
    assert raised.value.code == "parquet.unreadable"


def test_remote_files_are_told_by_their_marks(tmp_path: Path, path: Path) -> None:
    elsewhere = Elsewhere()
    elsewhere.pipe("/identity/a.parquet", path.read_bytes())
    try:
        source = make(tmp_path, "elsewhere://identity/a.parquet")
        splits = source.split(source.initial(), source.latest(source.initial(), ALL), 2)
        assert rows(source, splits) == OLD
        write(path, NEW)
        elsewhere.pipe("/identity/a.parquet", path.read_bytes())
        with pytest.raises(TransientError, match="was replaced"):
            rows(source, splits)
    finally:
        elsewhere.rm("/identity", recursive=True)
