"""Built-in processors, each alone after ``json.decode``, beside a hand-written loop in the same stage."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

from pyspark.sql import functions as f

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.builtin_cases import IN_ORDER, LOOP, MODULE, Case
from benchmarks.compare import Side, compare
from benchmarks.data import SCHEMA, generate, sound
from benchmarks.files import clear, counts
from benchmarks.setup import to_file, write_pipeline
from benchmarks.sql_split import split_sides


def builtin(bench: Bench, case: Case) -> dict[str, Any]:
    """Measure the processor beside the loop, or beside the pipeline without the processor if it has no loop."""
    wanted = round(sound(bench.records) * case.per_record)
    sides = [_side(bench, "ours", case, case.processors, wanted), _beside(bench, case, wanted)]
    if case.select:
        sides.append(_select(bench, case.select, wanted))
        sides.append(_side(bench, "without it", case, case.processors[:1], sound(bench.records)))
        sides += split_sides(bench, case.settings, wanted)
    return compare(sides, bench.records, bench.rounds)


def _beside(bench: Bench, case: Case, wanted: int) -> Side:
    if case.loop:
        plugin = "in-order" if case.in_order else "loop"
        return _side(bench, "hand-written loop", case, [{"id": "it", "plugin": plugin}], wanted)
    return _side(bench, "without it", case, case.processors[:1], sound(bench.records))


def _select(bench: Bench, query: str, wanted: int) -> Side:
    """Return a plain Spark job: JSON to a struct, the SELECT, back to JSON; invalid lines are left out."""
    root = bench.work / "plain"
    source = str(generate(bench.work, bench.records))

    def run() -> float:
        began = time.perf_counter()
        lines = bench.spark.read.text(source).select(f.from_json("value", SCHEMA).alias("r"))
        lines.where("r.id IS NOT NULL").select("r.*").createOrReplaceTempView("record")
        bench.spark.sql(query).select(f.to_json(f.struct("*")).alias("value")).write.text(str(root / "out"))
        return time.perf_counter() - began

    return Side("plain Spark job", partial(clear, root), run, partial(counts, root, ["out"]), wanted)


def _side(bench: Bench, name: str, case: Case, processors: Sequence[Mapping[str, Any]], wanted: int) -> Side:
    root = bench.work / "ours"
    prepare = partial(_write, root, _source(bench, case), case, processors)
    return Side(name, prepare, lambda: engine.drain(root, bench.spark), partial(counts, root, ["out"]), wanted)


def _source(bench: Bench, case: Case) -> Path:
    source = generate(bench.work, bench.records)
    if not case.wrapper:
        return source
    path = bench.work / f"in-{bench.records}-{case.plugin}.jsonl"
    if not path.exists():
        with source.open() as lines, path.open("w") as file:
            file.writelines(case.wrapper.replace("@", line.strip()) + "\n" for line in lines if line.startswith("{"))
    return path


def _write(root: Path, source: Path, case: Case, processors: Sequence[Mapping[str, Any]]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    (root / "plugins").mkdir(parents=True)
    (root / "transforms.py").write_text(MODULE)
    (root / "plugins" / "loop.py").write_text(_loop(case))
    pipeline = {
        "id": "bench",
        "trigger": "available-now",
        "connectors": [
            {"id": "in", "type": "source", "plugin": "builtin:file", "settings": {"path": str(source)}},
            to_file("out", "folder"),
        ],
        "processors": [_with_condition(one) for one in processors],
        "dead-letter-queue": {"plugin": "builtin:file", "settings": {"path": "./dead.jsonl"}, "window-size": 0},
    }
    write_pipeline(root, pipeline)


def _loop(case: Case) -> str:
    # a source leaves out keys that are not read
    text = LOOP if "record.key" in case.loop else LOOP.replace("shares_records =", "keyless = shares_records =")
    return text.replace("@", indent(case.loop or "pass", " " * 12)) + (IN_ORDER if case.in_order else "")


def _with_condition(processor: Mapping[str, Any]) -> dict[str, Any]:
    # a filter without a condition drops everything
    return {**processor, "condition": "after.id < 0"} if processor["plugin"] == "filter" else dict(processor)
