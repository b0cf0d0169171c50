"""Origins beside staged parts: they are read as written, whatever the source left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conduit_dagster.engine.origins import BlockPositions, RecordOrigin, TracedWriter, read_origins
from conduit_dagster.record import COLLECTION, Nack, Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, Part, Refusal, Writer, WriterTask
from conduit_dagster.state.steps import Part as StagedPart
from conduit_dagster.state.steps import StagedDelivery

ONE, OTHER = {COLLECTION: "a"}, {COLLECTION: "b"}


class Taker(Writer):
    """Refuses records at these places."""

    def __init__(self, *refused: int) -> None:
        self._refused = refused

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        return [Refusal(place, Nack("no", "no")) for place in self._refused]

    def finish(self) -> Part | None:
        return None

    def abort(self) -> None:
        pass


def traced(
    root: Path, block: Block, origins: Sequence[int], *refused: int, are_read: bool = False
) -> list[RecordOrigin]:
    """What is read of the block's records at these places, the first of which is the source's hundredth."""
    writer = TracedWriter(Taker(*refused), WriterTask(str(root), 0, "t"))
    writer.place("in", 100, origins)
    writer.block(BlockPositions(block, are_read))
    writer.write([block.records[origin] for origin in origins])
    writer.finish()
    staged = StagedDelivery("out", "data", "", str(root), [], {}, origins=[writer.origins] if writer.origins else [])
    return list(read_origins(staged))


def complete(place: int, record: Record) -> None:
    record.position = f"p{place}"


def left_out(count: int, **more: Any) -> Block:
    """Records without positions, of two namespaces where there are more than three."""
    return Block([Record(0, ONE if i < 3 else OTHER) for i in range(count)], str, complete, **more)


@pytest.mark.parametrize("origins", [range(5), range(1, 4), [0, 2, 2, 4], [4]])
@pytest.mark.parametrize("are_given", [False, True])
def test_positions_that_the_source_left_out(tmp_path: Path, origins: Sequence[int], are_given: bool) -> None:
    """By its list of them, or otherwise one by one."""
    block = left_out(5, positions=(lambda: [f"p{i}" for i in range(5)]) if are_given else None)
    names = ["a", "a", "a", "b", "b"]
    assert traced(tmp_path, block, origins) == [RecordOrigin("in", 100 + i, f"p{i}", names[i]) for i in origins]


def test_positions_that_were_read(tmp_path: Path) -> None:
    """They may differ from the block's: a processor can give records their own."""
    block = Block([Record(f"own{i}", ONE) for i in range(3)], str, complete)
    assert [one.position for one in traced(tmp_path, block, range(3), are_read=True)] == ["own0", "own1", "own2"]


@pytest.mark.parametrize("origins", [range(4), [0, 1, 3, 4]])
def test_a_refused_record_has_none(tmp_path: Path, origins: Sequence[int]) -> None:
    on = [origin for place, origin in enumerate(origins) if place != 1]
    found = traced(tmp_path, left_out(5), origins, 1)
    assert [(one.ordinal, one.position) for one in found] == [(100 + origin, f"p{origin}") for origin in on]


def test_text_that_json_cannot_hold(tmp_path: Path) -> None:
    block = Block([Record("\ud800", {COLLECTION: "\ud800"}), Record("x", {COLLECTION: "y"})], str)
    first, second = traced(tmp_path, block, range(2))
    assert (first.ordinal, second) == (100, RecordOrigin("in", 101, "x", "y"))
    assert "\ud800" not in first.position + first.namespace


def test_those_that_another_version_staged_otherwise_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "old").write_text('["in",[100,101],["p0","p1"],"a"]\n')
    staged = StagedDelivery("out", "data", "", str(tmp_path), [], {}, origins=[StagedPart("old", 2, 33, "")])
    with pytest.raises(FatalError, match="does not know") as caught:
        list(read_origins(staged))
    assert (caught.value.code, caught.value.place) == ("state.version", str(tmp_path / "old"))


def staged_bytes(root: Path, size: int) -> bytes:
    """The origins of 2,500 records of two sources, written in blocks of ``size``; every third has a second copy."""
    writer = TracedWriter(Taker(), WriterTask(str(root), 0, f"t{size}"))
    for source, count in (("in", 1_800), ("two", 700)):
        every = [Record(f"p{i}", ONE if i < 1_500 else OTHER) for i in range(count)]
        for first in range(0, count, size):
            records = every[first : first + size]
            origins = [place for place in range(len(records)) for _ in range(1 + ((first + place) % 3 == 0))]
            writer.place(source, first, origins if source == "two" else range(len(records)))
            writer.block(BlockPositions(Block(records, str), are_read=True))
            writer.write([records[origin] for origin in origins] if source == "two" else records)
    writer.finish()
    assert writer.origins is not None
    return (root / writer.origins.name).read_bytes()


@pytest.mark.parametrize("size", [1, 7, 1_000, 1_500])
def test_blocks_leave_no_trace(tmp_path: Path, size: int) -> None:
    """What is staged again from the log comes in other blocks than the source gave."""
    assert staged_bytes(tmp_path, size) == staged_bytes(tmp_path, 5_000)
