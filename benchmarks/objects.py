"""A bucket as source and as destination, beside a bare loop with the same client in one process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, compare
from benchmarks.files import counts
from benchmarks.setup import write_pipeline
from conduit_dagster.connectors.s3.bucket import Bucket
from conduit_dagster.connectors.s3.settings import S3Settings

_STEP = 100_000
"""Records of an object of the loop: one of our steps with the default batch size."""
_OBJECT_BYTES = 1_000
_RECORDS_PER_OBJECT = 400
"""Of the records of other measures: a request takes as long as some hundred of them."""
_AT_ONCE = 8
_LINE = b'{"id": %09d, "city": "Zagreb", "text": "' + b"x" * 55 + b'"}\n'


def s3_out(bench: Bench) -> dict[str, Any]:
    """Write lines of a hundred bytes into objects, in Conduit's JSON; the loop stores no position."""
    path, root, current = bench.work / f"lines-{bench.records}", bench.work / "ours", [0]
    with path.open("wb") as file:
        file.writelines(_LINE % number for number in range(bench.records))

    def prepare() -> None:
        current[0] += 1
        output = {**_settings(bench), "prefix": f"out-{current[0]}", "format": "json"}
        _write(root, "file", {"path": str(path)}, "s3", output, "exactly-once")

    def loop() -> float:
        began, bucket = time.perf_counter(), _bucket(bench)
        for number, lines in enumerate(_pieces(path)):
            bucket.put(f"out-{current[0]}/{number:06}.json", [b"".join(lines)], {})
        return time.perf_counter() - began

    def found() -> list[int]:
        bucket = _bucket(bench)
        objects = [bucket.read(one.key) for one in bucket.objects(f"out-{current[0]}/")]
        return [sum(one.data.count(b"\n") for one in objects if one is not None)]

    ours = Side("ours", prepare, lambda: engine.drain(root, bench.spark), found, bench.records)
    return compare([ours, Side("bare loop", prepare, loop, found, bench.records)], bench.records, bench.rounds)


def _pieces(path: Path) -> Iterator[list[bytes]]:
    encode, metadata = msgspec.json.Encoder().encode, {"opencdc.readAt": "1764579600000000000", "source": "bench:in"}
    lines: list[bytes] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = {
                "Operation": "create", "Position": str(number), "Payload": line[:-1].decode(), "Key": str(number),
                "Metadata": metadata,
            }  # fmt: skip
            lines.append(encode(row) + b"\n")
            if len(lines) == _STEP:
                yield lines
                lines = []
    if lines:
        yield lines


def s3_in(bench: Bench) -> dict[str, Any]:
    """Read objects of a kilobyte into lines; the loop has eight requests at once."""
    root, plain = bench.work / "ours", bench.work / "plain" / "out"
    many = max(100, bench.records // _RECORDS_PER_OBJECT)
    bucket, data = _bucket(bench), b'{"text": "%s"}' % (b"x" * (_OBJECT_BYTES - 12))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda n: bucket.put(f"in/{n:09}", [data], {}), range(many)))

    def prepare() -> None:
        output = {"path": "./out/", "sdk.record.format": "payload/json"}
        _write(root, "s3", {**_settings(bench), "prefix": "in/"}, "file", output, "at-least-once")

    def clear() -> None:
        shutil.rmtree(plain, ignore_errors=True)
        plain.mkdir(parents=True)

    def loop() -> float:
        began, own = time.perf_counter(), _bucket(bench)
        with (plain / "part-0").open("wb") as file, ThreadPoolExecutor(_AT_ONCE) as pool:
            for one in pool.map(own.read, [found.key for found in own.objects("in/")]):
                file.write((one.data if one else b"") + b"\n")
        return time.perf_counter() - began

    ours = Side("ours", prepare, lambda: engine.drain(root, bench.spark), lambda: counts(root, ["out"]), many)
    return compare(
        [ours, Side("bare loop", clear, loop, lambda: counts(plain.parent, ["out"]), many)], many, bench.rounds
    )


def _settings(bench: Bench) -> dict[str, str]:
    server = bench.object_store
    return {
        "aws.bucket": server.bucket, "aws.accessKeyId": server.user, "aws.secretAccessKey": server.secret,
        "aws.region": "us-east-1", "aws.endpoint": server.address,
    }  # fmt: skip


def _bucket(bench: Bench) -> Bucket:
    return Bucket(S3Settings.model_validate(_settings(bench)))


def _write(root: Path, source: str, read: dict[str, str], out: str, written: dict[str, str], strategy: str) -> None:
    shutil.rmtree(root, ignore_errors=True)
    pipeline = {
        "id": "bench",
        "trigger": "available-now",
        "delivery": {"strategy": strategy},
        "connectors": [
            {"id": "in", "type": "source", "plugin": f"builtin:{source}", "settings": read},
            {"id": "out", "type": "destination", "plugin": f"builtin:{out}", "settings": written},
        ],
    }
    write_pipeline(root, pipeline)
