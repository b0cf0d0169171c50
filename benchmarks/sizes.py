"""Records and files of realistic sizes, beside plain Spark; all shapes read or write a similar number of bytes.

As elsewhere: decode, set a computed field, rename one, drop one, write folders, exactly once. No line is broken.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, compare
from benchmarks.data import SCHEMA, once
from benchmarks.files import clear, counts, plain_spark
from benchmarks.setup import Setup, to_file
from benchmarks.shapes import Shape

_ROUNDS = 3
_BLOCK = 1_000_000


def sizes(bench: Bench, shape: Shape) -> dict[str, Any]:
    """Compare one shape with plain Spark."""
    source = source_of(bench, shape)
    size = sum(path.stat().st_size for path in (source.iterdir() if source.is_dir() else [source]))
    found = compare(sides_of(bench, shape), shape.records(bench.records), _rounds(bench, shape))
    return {"megabytes": round(size / 1e6), **found}


def sides_of(bench: Bench, shape: Shape) -> list[Side]:
    """Return our side and plain Spark's, which write ``out0`` and so on in the folders ``ours`` and ``plain``."""
    source, records = source_of(bench, shape), shape.records(bench.records)
    names = [f"out{number}" for number in range(shape.destinations)]
    return [_ours(bench, source, names, records), _plain(bench, shape, source, names, records)]


def seconds_of(bench: Bench, shape: Shape) -> float:
    """Return an estimate: each side takes about two seconds per 100 MB written."""
    written = shape.records(bench.records) * shape.size * shape.destinations
    return 2 * (_rounds(bench, shape) + 1) * (1.6 + 4 * written / 1e8)


def _rounds(bench: Bench, shape: Shape) -> int:
    return 1 if shape.is_large else min(bench.rounds, _ROUNDS)


def _ours(bench: Bench, source: Path, names: Sequence[str], records: int) -> Side:
    root = bench.work / "ours"
    setup = Setup([to_file(name, "folder") for name in names], "exactly-once")
    prepare = partial(setup.write, root, source)
    return Side("ours", prepare, lambda: engine.drain(root, bench.spark), partial(counts, root, names), records)


def _plain(bench: Bench, shape: Shape, source: Path, names: Sequence[str], records: int) -> Side:
    root = bench.work / "plain"
    schema = f"{SCHEMA}, {shape.schema}" if shape.schema else SCHEMA
    return Side(
        "plain Spark",
        partial(clear, root),
        lambda: plain_spark(root, bench.spark, source, names, schema),
        partial(counts, root, names),
        records,
    )


def source_of(bench: Bench, shape: Shape) -> Path:
    """Return one file, or a folder of files; created once."""
    work, records = bench.work, shape.records(bench.records)
    path = work / f"in-{shape.name}-{records}"
    if shape.is_large:
        return _repeated(path.with_suffix(".jsonl"), once(work / f"in-{shape.name}.jsonl", _BLOCK, shape.line), records)
    if not shape.records_per_file:
        return once(path.with_suffix(".jsonl"), records, shape.line)
    if not path.exists():
        _folder(path.with_suffix(".partial"), shape, records).rename(path)
    return path


def _folder(path: Path, shape: Shape, records: int) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for number, first in enumerate(range(0, records, shape.records_per_file)):
        lines = map(shape.line, range(first, first + shape.records_per_file))
        (path / f"{number:06d}.jsonl").write_text("".join(lines))
    return path


def _repeated(path: Path, block: Path, records: int) -> Path:
    """Return a file that repeats the same lines: twenty gigabytes take too long to generate one by one."""
    if not path.exists():
        partly = path.with_suffix(".partial")
        with partly.open("wb") as file:
            for _ in range(records // _BLOCK):
                with block.open("rb") as lines:
                    shutil.copyfileobj(lines, file, 1 << 20)
        partly.rename(path)
    return path
