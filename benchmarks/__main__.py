"""Run the benchmarks: ``python -m benchmarks [--only NAME...] [--quick] [--against BINARY...]``."""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from benchmarks import table
from benchmarks.against import AGAINST
from benchmarks.bench import Bench
from benchmarks.measures import MEASURES
from benchmarks.other_engines import Engine, recognise
from benchmarks.results import Results, draw
from conduit_dagster.processes import try_lock

# comparisons with another engine need its binary: --against
_NAMES = [name for name in MEASURES if not name.startswith(AGAINST)]
_PICTURE = "throughput.png"


def main() -> None:
    """Parse the arguments, and run the measures unless others are running."""
    arguments = _arguments()
    engines = {engine.name: engine for engine in map(recognise, arguments.against)}
    names = _chosen(arguments.only, [f"{AGAINST}{name.lower()}" for name in engines])
    with _alone(arguments.work):
        _run(arguments, engines, names)


def _run(arguments: argparse.Namespace, engines: dict[str, Engine], names: list[str]) -> None:
    """Print tables; write results.json and a picture, and on request a page's tables."""
    bench = _bench(arguments, engines)
    out = Path(arguments.out or (bench.work / "quick" if arguments.quick else "benchmarks/results"))
    results = Results(out)
    try:
        failed = _measure(bench, names, results)
    finally:
        bench.close()
    draw(results.measures, out / _PICTURE)
    print(f"\n{table.markdown(results.measures)}\n\n{results.path}, {out / _PICTURE}")
    if arguments.docs:
        page = Path(arguments.docs)
        table.write(page, results.measures)
        draw(results.measures, page.parent / "images" / _PICTURE)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


@contextmanager
def _alone(work: str) -> Iterator[None]:
    """Refuse a second benchmark in a folder: each would replace the other's files, and slow it down."""
    lock = Path(f"{work.rstrip('/')}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        if not try_lock(file):
            raise SystemExit(f"another benchmark is running in {work}: wait until it has ended")
        yield


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {', '.join(_NAMES)}; or patterns")
    against = "binaries of Conduit, Benthos or Vector: the same work there and here; without --only nothing else"
    parser.add_argument("--against", nargs="+", metavar="BINARY", default=[], help=against)
    parser.add_argument("--quick", action="store_true", help="small numbers, to try the benchmarks themselves")
    parser.add_argument("--records", type=int, help="1,000,000 unless quick")
    parser.add_argument("--rounds", type=int, help="counted rounds, after one that warms up; 5 unless quick")
    parser.add_argument("--steps", type=int, help="steps of one record; 300 unless quick")
    parser.add_argument("--work", default="/tmp/conduit-benchmarks", help="folder for input and output")
    parser.add_argument("--out", help="folder for results.json and the picture: benchmarks/results unless quick")
    parser.add_argument("--docs", metavar="PAGE", help="page to write the tables into, its picture next to it")
    return parser.parse_args()


def _chosen(patterns: list[str] | None, others: list[str]) -> list[str]:
    """Return the selected measures, in their own order; ``others``: comparisons with the given binaries."""
    if patterns is None:
        return others or [name for name, measure in MEASURES.items() if not measure.asked]
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in MEASURES):
            raise SystemExit(f"there is no measure {pattern}: {', '.join(_NAMES)}")
    return [name for name in MEASURES if name in others or any(_matches(name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern selects a measure: an expensive one must be named in full."""
    return name in _NAMES and (name == pattern or (fnmatch(name, pattern) and not MEASURES[name].asked))


def _bench(arguments: argparse.Namespace, engines: dict[str, Engine]) -> Bench:
    records, rounds, steps = (100_000, 2, 60) if arguments.quick else (1_000_000, 5, 300)
    work = Path(arguments.work)
    work.mkdir(parents=True, exist_ok=True)
    return Bench(work, arguments.records or records, arguments.rounds or rounds, arguments.steps or steps, engines)


def _measure(bench: Bench, names: list[str], results: Results) -> list[str]:
    """Run the measures and keep their results; return the names of those that failed."""
    failed: list[str] = []
    guess, began = sum(MEASURES[name].seconds(bench) for name in names), time.monotonic()
    print(f"{len(names)} measures, about {guess / 60:.0f} minutes on two cores", flush=True)
    for number, name in enumerate(names, 1):
        measure, passed = MEASURES[name], time.monotonic() - began
        print(f"{number}/{len(names)} after {passed / 60:.1f} min: {name} ({measure.title})", flush=True)
        try:
            results.add(name, measure.title, measure.run(bench), bench)
        except Exception:  # noqa: BLE001  # twenty minutes of other figures are not lost for it
            traceback.print_exc()
            failed.append(name)
    print(f"took {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return failed


if __name__ == "__main__":
    main()
