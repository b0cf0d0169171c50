"""``sql`` by splitting the stage: mapInArrow, Spark's projection, mapInArrow, in one Spark stage.

A task without the engine, so that only the two ways differ: it reads its lines, decodes them, runs the query, and
writes the results. ``in one function`` does the query's work in Python; the split passes each record across as bytes. A
record here has only position, metadata and document; the engine's also has key, operation and ``before``, and each
processor's nacks, so the split would cost more in the engine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from benchmarks.bench import Bench
from benchmarks.compare import Side
from benchmarks.data import generate
from benchmarks.files import clear, counts
from conduit_dagster.processors.common.spark_sql.block import Columns
from conduit_dagster.processors.common.spark_sql.column_types import Answers, parse_columns
from conduit_dagster.processors.common.spark_sql.statement import PARTS, DocumentSelection, parse_statement
from conduit_dagster.record import Record
from conduit_dagster.spark.sql.frame import result_of, types_of
from conduit_dagster.spark.sql.query import SqlQuery, ddl
from conduit_dagster.spark.sql.sql_session import sql_session

_BLOCK = 1024
_METADATA = {"opencdc.readAt": "1674061777225877000", "opencdc.collection": "in"}
Batches = Iterator[Any]


def split_sides(bench: Bench, settings: Mapping[str, str], wanted: int) -> list[Side]:
    """Return the task in one function, and split."""
    root, source = bench.work / "split", generate(bench.work, bench.records)
    ways = {"by hand, in one function": _whole, "by hand, split": _split}
    return [
        Side(
            name,
            partial(clear, root),
            partial(_timed, bench, partial(way, settings), root / "out", source),
            partial(counts, root, ["out"]),
            wanted,
        )
        for name, way in ways.items()
    ]


def _timed(bench: Bench, way: Callable[..., DataFrame], out: Path, source: Path) -> float:
    out.mkdir()
    began = time.perf_counter()
    spark = sql_session(bench.spark)
    tasks = os.cpu_count() or 1
    way(spark, spark.range(0, tasks, 1, tasks), _Job(str(source), tasks, str(out))).collect()
    return time.perf_counter() - began


class _Job(msgspec.Struct, frozen=True):
    source: str
    tasks: int
    out: str

    def blocks(self, number: int) -> Iterator[list[Record]]:
        decode = msgspec.json.Decoder().decode
        size = Path(self.source).stat().st_size
        begin, end = size * number // self.tasks, size * (number + 1) // self.tasks
        with Path(self.source).open("rb") as file:
            file.seek(max(0, begin - 1))
            if begin:
                file.readline()
            while file.tell() < end:
                records: list[Record] = []
                while len(records) < _BLOCK and file.tell() < end:
                    at = file.tell()
                    line = file.readline()
                    if line.startswith(b"{"):
                        records.append(Record(f"{at}", dict(_METADATA), decode(line)))
                yield records

    def write(self, number: int, documents: Iterator[Any]) -> Any:
        encode, done = msgspec.json.Encoder().encode_lines, 0
        with Path(self.out, f"part-{number}.jsonl").open("wb") as file:
            for block in documents:
                file.write(encode(block))
                done += len(block)
            file.flush()
            os.fsync(file.fileno())
        return pa.RecordBatch.from_pydict({"done": pa.array([done], pa.int64())})


def _whole(_: Any, __: Any, numbers: DataFrame, job: _Job) -> DataFrame:
    def task(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield job.write(number, map(_computed, job.blocks(number)))

    return numbers.mapInArrow(task, "done bigint")


def _computed(records: list[Record]) -> list[Any]:
    for record in records:
        doc: Any = record.after
        doc["cents"], doc["town"] = doc["amount"] * 100, doc["city"].upper()
    return [record.after for record in records]


def _split(settings: Mapping[str, str], spark: Any, numbers: DataFrame, job: _Job) -> DataFrame:
    declared = parse_columns(settings["columns"])
    statement = parse_statement(settings["query"], declared)
    query, columns = statement.query, Columns(declared, PARTS, statement.used)
    assert query is not None
    selection = DocumentSelection(statement.items)
    types = types_of(spark, "", query)

    def read(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for records in job.blocks(number):
                    yield _rows(number, records, columns, query)

    def write(batches: Batches) -> Batches:
        answers = Answers(types)
        first = next(batches)
        number = first.column("number")[0].as_py()

        def documents() -> Iterator[list[Any]]:
            yield _merged(first, selection, answers)
            for batch in batches:
                yield _merged(batch, selection, answers)

        yield job.write(number, documents())

    rows = numbers.mapInArrow(read, f"number bigint, record binary, {query.name} {ddl(query.struct)}")
    answered = rows.select("number", "record", f.expr(result_of(query)).alias("answer"))
    return answered.mapInArrow(write, "done bigint")


def _rows(number: int, records: list[Record], columns: Columns, query: SqlQuery) -> Any:
    encode = msgspec.msgpack.Encoder().encode
    arrays = columns.block(records).arrays
    struct = pa.StructArray.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
    carried = pa.array([encode((r.position, r.metadata, r.after)) for r in records], pa.binary())
    own = {"number": pa.repeat(pa.scalar(number, pa.int64()), len(records)), "record": carried, query.name: struct}
    return pa.RecordBatch.from_pydict(own)


def _merged(batch: Any, selection: DocumentSelection, answers: Answers) -> list[Any]:
    decode = msgspec.msgpack.Decoder().decode
    documents: list[Any] = []
    for encoded, answer in zip(batch.column("record").to_pylist(), batch.column("answer").to_pylist(), strict=True):
        position, metadata, document = decode(encoded)
        if answer:
            documents.append(selection.of(Record(position, metadata, document), answers.read(answer)))
    return documents
