"""Where collections stand, as far as sources of files know: what is there is read, or not yet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.file_reading import Reader
from lab.inbox import WAITS
from lab.kept import MemoryValues, leave_at

from conduit_dagster.connectors.parquet.source import ParquetSource, ParquetSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import ConnectorContext, Limit

PATTERN = "^([a-z]+)-"


def modes(reader: Reader) -> dict[str, str]:
    return dict(reader.source.collection_modes(reader.position))


@pytest.mark.parametrize("leaves_at", [1, 10**9])
def test_a_collection_is_complete_once_all_of_its_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_at: int
) -> None:
    """Whether or not the files have left the position; a file without a collection counts for none."""
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
