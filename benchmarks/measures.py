"""All measures by name, with their titles and approximate durations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from benchmarks.against import AGAINST, against
from benchmarks.against import seconds_of as against_takes
from benchmarks.backlog import TIMES, backlogs
from benchmarks.bench import Bench
from benchmarks.builtin_cases import CASES, PROCESSOR
from benchmarks.builtins import builtin
from benchmarks.columnar import columnar
from benchmarks.copies import copy_read, copy_table
from benchmarks.files import files, in_flight, logged
from benchmarks.kafka import kafka_in, kafka_out, kafka_through
from benchmarks.letters import letters
from benchmarks.objects import s3_in, s3_out
from benchmarks.other_engines import BENTHOS, CONDUIT, VECTOR
from benchmarks.scale import scale
from benchmarks.setup import KINDS
from benchmarks.shapes import SHAPES, SIZES
from benchmarks.sizes import seconds_of as sizes_take
from benchmarks.sizes import sizes
from benchmarks.slots import seconds_of as slots_take
from benchmarks.slots import slots_into_file, slots_into_table, slots_read
from benchmarks.tables import tables, tables_in_flight
from benchmarks.trickle import trickles


class Measure(NamedTuple):
    """One line, or one table, of the results."""

    title: str
    run: Callable[[Bench], dict[str, Any]]
    seconds: Callable[[Bench], float]
    """Estimated duration on two cores."""
    asked: bool = False
    """Whether it runs only if named explicitly."""


def _compared(sides: int, per_million: float) -> Callable[[Bench], float]:
    """Return the duration. ``per_million``: seconds for one run of each side together, per million records."""
    return lambda bench: 2 * (bench.rounds + 1) * (0.8 * sides + per_million * bench.records / 1e6)


def _backlogs(bench: Bench) -> float:
    return len(KINDS) * (2 * 14 + (1 + TIMES) * 1.8 * bench.records / 1e6)


MEASURES: dict[str, Measure] = {
    # first: it counts the memory of this process, which grows with what the others load
    "steps": Measure("steps of one record", trickles, lambda bench: len(KINDS) * (bench.steps * 0.13 + 2 * 60 * 0.06)),
    "folder-at-least-once": Measure(
        "folder, at least once", partial(files, strategy="at-least-once", layout="folder"), _compared(2, 2.6)
    ),
    "folder-at-least-once-two": Measure(
        "two folders, at least once",
        partial(files, strategy="at-least-once", layout="folder", destinations=2),
        _compared(2, 3.6),
    ),
    "file-exactly-once": Measure(
        "ordered file, exactly once", partial(files, strategy="exactly-once", layout="file"), _compared(2, 2.7)
    ),
    "folder-exactly-once": Measure(
        "folder, exactly once", partial(files, strategy="exactly-once", layout="folder"), _compared(2, 2.6)
    ),
    "records": Measure("folder, exactly once, log: records", logged, _compared(3, 6.0)),
    "records-two": Measure(
        "two folders, exactly once, log: records", partial(logged, destinations=2), _compared(3, 7.5)
    ),
    "in-flight": Measure("ordered file, exactly once, two steps in flight", in_flight, _compared(3, 5.0)),
    "postgres": Measure("table, exactly once", tables, _compared(3, 6.5)),
    "postgres-two": Measure("two tables, exactly once", partial(tables, destinations=2), _compared(3, 11.0)),
    "postgres-in-flight": Measure("table, exactly once, two steps in flight", tables_in_flight, _compared(3, 7.5)),
    "kafka-in": Measure("Kafka to folder, at least once", kafka_in, _compared(2, 4.0)),
    "kafka-out": Measure("file to Kafka, exactly once", kafka_out, _compared(2, 5.0)),
    "s3-in": Measure("objects of 1 KB to folder, at least once", s3_in, _compared(2, 10.0)),
    "s3-out": Measure("file to S3, exactly once", s3_out, _compared(2, 4.0)),
    "kafka": Measure("Kafka to Kafka, exactly once", kafka_through, _compared(2, 6.0)),
    "slot-read": Measure("nowhere, changes of a PostgreSQL slot", slots_read, slots_take),
    "slot-file": Measure("ordered file, exactly once, changes of a PostgreSQL slot", slots_into_file, slots_take),
    "slot-table": Measure("table, exactly once, changes of a PostgreSQL slot", slots_into_table, slots_take),
    "copy-read": Measure("nowhere, copy of a PostgreSQL table", copy_read, _compared(2, 6.0)),
    "copy-table": Measure("table, exactly once, copy of a PostgreSQL table", copy_table, _compared(2, 12.0)),
    "parquet": Measure("Parquet to Parquet, exactly once", partial(columnar, plugin="parquet"), _compared(2, 1.5)),
    "delta": Measure("Parquet to Delta, exactly once", partial(columnar, plugin="delta"), _compared(2, 1.5)),
    **{
        f"{PROCESSOR}{case.name.replace(' ', '-')}": Measure(
            case.name, partial(builtin, case=case), _compared(2, 40 if case.plugin == "custom.javascript" else 3.0)
        )
        for case in CASES
    },
    "letters": Measure("a step of dead letters", letters, lambda bench: 30 + 90 * bench.records / 1e6),
    "scale": Measure("bookkeeping by size", scale, lambda bench: 300 if bench.records >= 1_000_000 else 20),
    **{
        f"{SIZES}{shape.name}": Measure(
            shape.title, partial(sizes, shape=shape), partial(sizes_take, shape=shape), asked=shape.is_large
        )
        for shape in SHAPES
    },
    **{
        f"{AGAINST}{kind.lower()}": Measure(f"beside {kind}", partial(against, kind=kind), against_takes, asked=True)
        for kind in (CONDUIT, BENTHOS, VECTOR)
    },
    "backlog": Measure("peak memory over a backlog", backlogs, _backlogs),
}
