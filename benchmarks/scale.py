"""Cost of bookkeeping at scale: files in a folder, dead letters of a step, pipelines in a store."""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from benchmarks.bench import Bench
from benchmarks.quiet import quiet
from benchmarks.refused import refused
from conduit_dagster.config.project import Project
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.connectors.parquet.source import ParquetSource, ParquetSourceSettings
from conduit_dagster.engine.dead_letters.archive import Archive, ArchivedLetter, ArchiveFile
from conduit_dagster.engine.prepare import index_letters
from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import ConnectorContext, KeptValues, Limit, Source
from conduit_dagster.state.claim import project_store
from conduit_dagster.state.database import open_database
from conduit_dagster.state.dead_letters import insert_parts
from conduit_dagster.state.kept_values import KeptStore
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.steps import Plan, Range, encode
from conduit_dagster.state.store import PipelineStore

_PER_STEP = 1_000
"""Files per step."""
_LIMIT = Limit(1_000_000, 1 << 30)
_PIPELINE = """
version: "2.2"
pipelines:
  - id: {name}
    connectors:
      - {{id: in, type: source, plugin: "builtin:file", settings: {{path: ./{name}.jsonl}}}}
      - {{id: out, type: destination, plugin: "builtin:file", settings: {{path: ./out-{name}.jsonl}}}}
    processors:
      - {{id: decode, plugin: json.decode, settings: {{field: .Payload.After}}}}
"""


def scale(bench: Bench) -> dict[str, Any]:
    """Return one row per size: cost should grow with the size of a step, not with the amount handled before."""
    larger = bench.records >= 1_000_000
    files = (1_000, 10_000, 100_000) if larger else (1_000, 3_000)
    letters = (10_000, 100_000, 1_000_000) if larger else (10_000, 50_000)
    pipelines = (10, 100, 1_000) if larger else (10, 50)
    count = 10_000 if larger else 500
    refusing = [(kind, every) for kind in ("ledger", "postgres") for every in (1, 10)]
    root = bench.work / "scale"
    return {
        "records": bench.records,
        "files": [_files(_emptied(root), size, _line_source, b'{"n":1}\n') for size in files],
        "parquet_files": [_files(_emptied(root), size, _parquet_source, _parquet_bytes()) for size in files],
        "letters": [_letters(_emptied(root), size) for size in letters],
        "pipelines": [_pipelines(_emptied(root), size) for size in pipelines],
        "quiet": [quiet(_emptied(root), size) for size in ((1, 10_000) if larger else (1,))],
        "refused": [refused(bench, _emptied(root), kind, count, every) for kind, every in refusing],
    }


def _emptied(root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    return root


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = work()
    return result, round(1_000 * (time.perf_counter() - began), 1)


# -- files of a folder ------------------------------------------------------------------------------------------------


def _line_source(context: ConnectorContext) -> FileSource:
    return FileSource(FileSourceSettings.model_validate({"path": "in/"}), context)


def _parquet_source(context: ConnectorContext) -> ParquetSource:
    return ParquetSource(ParquetSourceSettings(path="in/"), context)


def _parquet_bytes() -> bytes:
    into = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}), into)
    return into.getvalue()


def _files(root: Path, size: int, of: Callable[[ConnectorContext], Source], content: bytes) -> dict[str, Any]:
    """Measure the driver's work and storage for a step of a folder, without the job. Times in milliseconds.

    The place, splits and verification are those of the last step; they depend on the step alone.
    """
    then = time.time() - 60
    (root / "in").mkdir()
    for number in range(size):
        path = root / "in" / f"{number:08d}"
        path.write_bytes(content)
        os.utime(path, (then, then))
    database = open_database(f"sqlite:///{root}/state.db")
    lease = acquire(database, "p", 30)
    kept = _Kept(PipelineStore(database, lease).kept_values("in"))
    source = of(ConnectorContext("p", "in", str(root), Clock(7)))
    source.attach_kept(KeptValues(kept.get, kept.put))
    start, end = source.initial(), source.initial()
    plans = list[float]()
    while True:
        following, ms = _timed(lambda: source.latest(end, _LIMIT))  # noqa: B023  # called at once
        if following == end:
            idle_ms = ms
            break
        start, end = end, following
        plans.append(ms)
    tenth = max(1, len(plans) // 10)
    place, place_ms = _timed(lambda: (source.place(start), source.place(end)))
    split_ms = _timed(lambda: source.split(start, end, 2))[1]
    verify_ms = _timed(lambda: source.verify(start, end))[1]
    named = [{"source": "in", "generation": 1, "start": place[0], "end": place[1]}]
    stored = len(encode(Plan(1, 1, [Range("in", 1, start, end, 0)], named=named)))
    lease.release()
    database.dispose()
    return {
        "files": size,
        "step_ms": round(statistics.median(plans) + place_ms + split_ms + verify_ms),
        "plan_ms": round(statistics.median(plans)),
        "first_tenth_ms": round(statistics.median(plans[:tenth])),
        "last_tenth_ms": round(statistics.median(plans[-tenth:])),
        "worst_ms": round(max(plans)),
        "idle_look_ms": round(idle_ms),
        "plan_bytes": stored,
        "position_bytes": len(json.dumps(end)),
        "list_bytes_per_step": kept.written // len(plans),
    }


class _Kept:
    """The values of a source, counting the bytes that were put."""

    def __init__(self, store: KeptStore) -> None:
        self._store, self.get = store, store.get
        self.written = 0

    def put(self, value: bytes) -> str:
        self.written += len(value)
        return self._store.put(value)


# -- dead letters of a step -------------------------------------------------------------------------------------------


def _letters(root: Path, size: int) -> dict[str, Any]:
    """Measure indexing of a step's dead letters, and the longest wait of another pipeline's transaction meanwhile."""
    database = open_database(f"sqlite:///{root}/state.db")
    lease = acquire(database, "p", 30)
    store = PipelineStore(database, lease)
    plan = Plan(1, 1, [Range("in", 1, 0, size, 0)], hashes={"dead_letters": "h" * 64})
    store.plan(plan)
    file = ArchiveFile(str(root / "archive"), 1, 0)
    why = "JSON is malformed: expected value (byte 0)"
    for number in range(size):
        at = f"12:file.jsonl:{number * 100}"
        file.add(ArchivedLetter("in", number, at, "", "p:json.decode", "json.decode", why, "", -1, -1, b"x", b"y"))
    part = file.finish()
    assert part is not None
    store.transactions.run(lambda connection: insert_parts(connection, "p", 1, [part]))
    with _Neighbour(database) as neighbour:
        _, ms = _timed(lambda: index_letters(store, Archive(str(root / "archive"))))
    lease.release()
    database.dispose()
    return {"letters": size, "seconds": round(ms / 1_000, 1), "others_wait_s": round(max(neighbour.waits), 2)}


class _Neighbour:
    """Another pipeline of the same store, running one transaction after the other."""

    def __init__(self, database: sa.Engine) -> None:
        self.waits: list[float] = []
        self._database, self._ended = database, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        lease = acquire(self._database, "neighbour", 30)
        transactions = PipelineStore(self._database, lease).transactions
        while not self._ended.wait(0.01):
            began = time.perf_counter()
            transactions.run(lambda _: None)
            self.waits.append(time.perf_counter() - began)
        lease.release()


# -- pipelines of a store ---------------------------------------------------------------------------------------------


def _pipelines(root: Path, size: int) -> dict[str, Any]:
    """Measure ``pipelines list`` as a command, including the start of Python: minimum of three."""
    (root / "pipelines").mkdir()
    database = project_store(Project.find(root))
    for number in range(size):
        name = f"p{number:04d}"
        (root / "pipelines" / f"{name}.yaml").write_text(_PIPELINE.format(name=name))
        acquire(database, name, 30).release()
    database.dispose()
    command = [sys.executable, "-m", "conduit_dagster.cli.main", "pipelines", "list", "--json"]
    seconds, used = min(_listed(command, root, size) for _ in range(3))
    return {"pipelines": size, "seconds": round(seconds, 2), "cpu_seconds": round(used, 2)}


def _listed(command: list[str], root: Path, size: int) -> tuple[float, float]:
    before = os.times()
    ran, ms = _timed(lambda: subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True))
    after = os.times()
    assert len(json.loads(ran.stdout)["result"]["pipelines"]) == size
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return ms / 1_000, used
