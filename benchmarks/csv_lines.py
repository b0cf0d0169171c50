"""CPU time of ``csv.decode`` beside ``json.decode``, for the same records: ``python -m benchmarks.csv_lines``."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Mapping, Sequence

from conduit_dagster.builtin_plugins import PROCESSORS
from conduit_dagster.expressions import Clock
from conduit_dagster.record import FILE_HEADER, Record
from conduit_dagster.sdk import ProcessorContext

_RECORDS = 300_000
_BLOCK = 3_000
_ROUNDS = 5
_NAMES = ("id", "name", "age", "city", "amount")
_ROWS = [
    (i, f"name{i}", random.randint(1, 99), ("Lyon", "Zagreb")[i % 2], round(random.random() * 1000, 2))
    for i in range(_RECORDS)
]


def main() -> None:
    """Print microseconds per record, of the best round."""
    as_json = [json.dumps(dict(zip(_NAMES, row, strict=True))).encode() for row in _ROWS]
    as_csv = [",".join(map(str, row)).encode() for row in _ROWS]
    gc.disable()  # as in a task
    print(f"{_time('json.decode', {'field': '.Payload.After'}, as_json):.2f} µs  json.decode")
    for columns in ("", "id:int, age:int, amount:float"):
        print(f"{_time('csv.decode', {'columns': columns}, as_csv):.2f} µs  csv.decode, columns: {columns or 'text'}")


def _time(name: str, settings: Mapping[str, str], lines: Sequence[bytes]) -> float:
    return min(_round(name, settings, lines) for _ in range(_ROUNDS))


def _round(name: str, settings: Mapping[str, str], lines: Sequence[bytes]) -> float:
    kind = PROCESSORS.all()[name]
    processor = kind(kind.Settings.model_validate(settings), ProcessorContext("p", "p:x", Clock(0)))
    metadata, spent = {FILE_HEADER: ",".join(_NAMES)}, 0.0
    for start in range(0, len(lines), _BLOCK):
        records = [Record(0, metadata, line) for line in lines[start : start + _BLOCK]]
        began = time.process_time()
        processor.process_block(records)
        spent += time.process_time() - began
    return spent / len(lines) * 1e6


if __name__ == "__main__":
    main()
