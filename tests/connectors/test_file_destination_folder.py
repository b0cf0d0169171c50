"""A folder of parts: the order of the names is the order of the stream, whatever happened to a step."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from lab.file_deliveries import killed_mid_publish, make, prepared, stage
from lab.file_reading import text_of
from lab.parts_stream import read_folder

from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Block, ConnectorContext, Delivery, Limit, ReadOptions, Strategy

LETTER = 1 << 40
"""The number space of dead letters that were found at publishing."""


def numbers(path: Path) -> list[int]:
    return [int(line.split(b":")[1].rstrip(b"}\n")) for line in read_folder(path)]


def publish(root: Path, step: int, tasks: list[list[int]], skip: int = 0) -> Delivery:
    """A delivery of the folder ``out``, or a child of one."""
    destination = make(root, "out/")
    delivery = prepared(stage(destination, root, step, tasks, skip), destination.target(None))
    assert not destination.holds(delivery)
    assert destination.publish(delivery) == destination.expected(delivery) == destination.settled(delivery)
    assert destination.holds(delivery)
    return delivery


def names(root: Path) -> list[str]:
    return sorted(folder.name for folder in (root / "out").glob("step=*"))


def publish_as_released(root: Path, step: int, tasks: list[list[int]]) -> Delivery:
    """A delivery prepared and published by the earlier version: another name, and a target without its naming."""
    delivery = publish(root, step, tasks)
    [new] = (root / "out").glob(f"step={step:012d}-0000000000000000-*")
    new.rename(new.with_name(f"step={step:012d}-{delivery.hash[:12]}"))
    return replace(delivery, target={"path": delivery.target["path"]})


def test_a_name_holds_step_skip_and_hash(tmp_path: Path) -> None:
    delivery = publish(tmp_path, 7, [[1]])
    letter = publish(tmp_path, 7, [[2]], LETTER + 3)
    assert names(tmp_path) == [
        f"step=000000000007-0000000000000000-{delivery.hash[:12]}",
        f"step=000000000007-0001099511627779-{letter.hash[:12]}",
    ]


def test_the_order_of_names_is_the_order_of_the_stream(tmp_path: Path) -> None:
    """Children sort after their step's own delivery and before the next step, in whatever order they arrived."""
    publish(tmp_path, 2, [[30], [31]])
    publish(tmp_path, 1, [[12]], LETTER + 10)
    publish(tmp_path, 10, [[40]])
    publish(tmp_path, 1, [[11]], LETTER + 9)
    publish(tmp_path, 1, [[1, 2], [3]])
    assert numbers(tmp_path / "out") == [1, 2, 3, 11, 12, 30, 31, 40]
    by_name = b"".join(part.read_bytes() for part in sorted((tmp_path / "out").glob("step=*/*")))
    assert by_name == b"".join(read_folder(tmp_path / "out"))


def test_names_of_the_earlier_version_keep_their_place(tmp_path: Path) -> None:
    """Before and after new ones, also if a dead letter follows in the same step."""
    publish_as_released(tmp_path, 2, [[2]])
    publish(tmp_path, 1, [[1]])
    publish(tmp_path, 2, [[3]], LETTER)
    publish(tmp_path, 3, [[4]])
    publish_as_released(tmp_path, 4, [[5]])
    assert numbers(tmp_path / "out") == [1, 2, 3, 4, 5]


def test_what_is_no_delivery_is_not_read(tmp_path: Path) -> None:
    """Staged parts, a hidden folder that never became visible, and foreign files."""
    destination = make(tmp_path, "out/")
    with killed_mid_publish():
        destination.publish(prepared(stage(destination, tmp_path, 1, [[1]]), destination.target(None)))
    (tmp_path / "out" / "notes.txt").write_text("x\n")
    (tmp_path / "out" / "step=x").mkdir()
    publish(tmp_path, 2, [[2]])
    assert numbers(tmp_path / "out") == [2]


def test_a_step_that_the_earlier_version_prepared_keeps_its_name(tmp_path: Path) -> None:
    """Published or not: a frozen process of that version would publish it under no other name."""
    delivery = publish_as_released(tmp_path, 1, [[1], [2]])
    destination = make(tmp_path, "out/")
    assert destination.holds(delivery)
    assert destination.settled(delivery) == delivery.target
    destination.publish(delivery)
    assert names(tmp_path) == [f"step=000000000001-{delivery.hash[:12]}"]
    fresh = prepared(stage(destination, tmp_path, 2, [[3]]), {"path": str(tmp_path / "out")})
    assert not destination.holds(fresh)
    destination.publish(fresh)
    assert names(tmp_path)[1] == f"step=000000000002-{fresh.hash[:12]}"
    letter = prepared(stage(destination, tmp_path, 2, [[4]], LETTER), fresh.target)
    destination.publish(letter)
    assert (tmp_path / "out" / f"step=000000000002-{LETTER:016d}-{letter.hash[:12]}").is_dir()
    assert "naming" in destination.target(delivery.target)


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once", "at-most-once"])
def test_a_delivery_is_visible_whole_or_not_at_all(tmp_path: Path, strategy: Strategy) -> None:
    """Killed between preparing the hidden folder and the rename; the next delivery does not depend on it."""
    destination = make(tmp_path, "out/", strategy)
    delivery = prepared(stage(destination, tmp_path, 1, [[1], [2]]), destination.target(None))
    with killed_mid_publish():
        destination.publish(delivery)
    assert names(tmp_path) == []
    [ready] = Path(delivery.staging).parent.glob("ready-*")
    assert sorted(part.name for part in ready.iterdir()) == ["part-00000.jsonl", "part-00001.jsonl"]
    again = make(tmp_path, "out/", strategy)
    after = again.expected(delivery) if strategy == "at-most-once" else again.publish(delivery)
    second = prepared(stage(again, tmp_path, 2, [[3]]), again.target(after))
    again.publish(second)
    assert numbers(tmp_path / "out") == ([3] if strategy == "at-most-once" else [1, 2, 3])


def test_an_error_of_the_disk_names_the_path_whatever_was_asked(tmp_path: Path) -> None:
    """A delivery's folder is removed while recovery makes it durable."""
    delivery = publish(tmp_path, 1, [[1]])
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(TransientError, match=f"can't write {tmp_path}/out: "):
        make(tmp_path, "out/").settled(delivery)


def test_a_file_source_reads_a_folder_in_order(tmp_path: Path) -> None:
    """By a glob over the parts; later deliveries are read next."""
    source = FileSource(
        FileSourceSettings.model_validate({"path": "out/step=*/part-*.jsonl"}),
        ConnectorContext("q", "in", str(tmp_path), Clock()),
    )
    publish(tmp_path, 1, [[12]], LETTER)
    publish(tmp_path, 1, [[1], [2, 3]])
    position, seen = source.initial(), list[bytes]()
    for step in (2, 3):
        publish(tmp_path, step, [[step * 10], [step * 10 + 1]])
        end = source.latest(position, Limit(1_000, 1_000_000))
        for split in source.split(position, end, 3):
            for block in source.read(split, ReadOptions()):
                assert isinstance(block, Block)
                seen += [f"{text_of(record)}\n".encode() for record in block.records]
        position = end
    assert seen == list(read_folder(tmp_path / "out"))
    assert len(seen) == 8
