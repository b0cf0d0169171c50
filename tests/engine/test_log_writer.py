"""The writer of a task's log: what it logs, and what its blocks say, is what reading the log says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from lab.logged_lab import COUNTING, build, lab_in
from lab.support import Lab, destination, source
from pyspark.sql import SparkSession

from conduit_dagster.commit_log.entries import SCHEMA, decode_batch, encode_block, encode_plain
from conduit_dagster.engine.log_writer import LogWriter
from conduit_dagster.engine.origins import BlockPositions
from conduit_dagster.engine.stage_job import LogRequest
from conduit_dagster.sdk import Block, Keys, Limit, ReadOptions


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return lab_in(tmp_path, spark)


def test_a_plain_block_is_logged_as_its_records_are(lab: Lab) -> None:
    build(lab, source("./many/*.jsonl"))
    bound = lab.catalogue().get("p")
    assert bound is not None
    real = bound.compiled.sources[0].source
    end = real.latest(real.initial(), Limit(1000, 1_000_000))
    seen = 0
    for split in real.split(real.initial(), end, 2):
        bare, full = (_blocks(real.read(split, ReadOptions(keys=keys))) for keys in (Keys.NONE, Keys.ALL))
        for one, other in zip(bare, full, strict=True):
            assert one.plain is not None
            plain = encode_plain("in", 5, one.records[0], one.plain(), 7)
            assert plain.equals(encode_block("in", 5, other.records, None, 7, {}))
            seen += len(other.records)
    assert seen == 140


def _two_files(lab: Lab, real: Any) -> Any:
    for name in "ab":
        lab.write(f"large/{name}.jsonl", LARGE)
    return real.initial()


def _rotated(lab: Lab, real: Any) -> Any:
    """Positions of the first file have no prefix; the records of both have the same metadata."""
    path = lab.write("large.jsonl", LARGE[:1])
    start = real.latest(real.initial(), LIMIT)
    lab.write("large.jsonl", LARGE)
    path.rename(lab.root / "large.jsonl.1")
    lab.write("large.jsonl", LARGE)
    return start


LARGE = [{"i": i, "t": "x" * (i % 90)} for i in range(3000)]
LIMIT = Limit(10_000, 10_000_000)


@pytest.mark.parametrize(("path", "prepare"), [("./large/*.jsonl", _two_files), ("./large.jsonl", _rotated)])
def test_small_plain_blocks_share_a_batch_and_are_logged_as_they_are_read(
    lab: Lab, tmp_path: Path, path: str, prepare: Any
) -> None:
    """Several blocks of two files; what a block says equals what reading the log says."""
    build(lab, source(path))
    bound = lab.catalogue().get("p")
    assert bound is not None
    (node,), real = bound.compiled.inputs, bound.compiled.sources[0].source
    start = prepare(lab, real)
    splits = real.split(start, real.latest(start, LIMIT), 1)
    writer = LogWriter(bound.compiled, node, LogRequest(str(tmp_path / "segment"), 5), 0)
    blocks = [block for split in splits for block in writer.blocks(split)]
    assert len(splits) == 2
    assert len(blocks) > 2 * len(splits)
    told = [record for block in blocks if block.again for record in block.again(range(len(block.records)))]
    positions = [position for block in blocks if block.positions for position in block.positions()]
    written = writer.finish()
    (file,) = (tmp_path / "segment").iterdir()
    logged = decode_batch(pq.read_table(file, schema=SCHEMA).combine_chunks().to_batches()[0])
    read = [r for split in splits for block in _blocks(real.read(split, ReadOptions())) for r in block.records]
    for record in read:
        record.position = str(record.position)
    assert logged.records == read == told
    assert positions == [record.position for record in read]
    offsets = list(range(5, 5 + len(read)))
    assert logged.offsets == offsets == [b.boundary(i) - 1 for b in blocks for i in range(len(b.records))]
    assert written.boundary["line"] == 3000


def test_positions_that_nothing_asked_for_are_known_afterwards(lab: Lab, tmp_path: Path) -> None:
    """A refused record is named by its position, also if no processor and no destination reads positions."""
    build(lab, COUNTING, processors=(), out={**destination(), "plugin": "objects"})
    bound = lab.catalogue().get("p")
    assert bound is not None and bound.compiled.reads_keys < Keys.POSITIONS
    (node,), real = bound.compiled.inputs, bound.compiled.sources[0].source
    writer = LogWriter(bound.compiled, node, LogRequest(str(tmp_path / "segment"), 0), 0)
    blocks = [block for split in real.split(0, 70, 1) for block in writer.blocks(split)]
    writer.abort()
    found = [BlockPositions(block, are_read=False).of(block.records, range(len(block.records))) for block in blocks]
    assert [position for some in found for position in some] == [str(place + 1) for place in range(70)]


def _blocks(read: Iterator[Any]) -> list[Block]:
    return [one if isinstance(one, Block) else Block.of(one) for one in read]
