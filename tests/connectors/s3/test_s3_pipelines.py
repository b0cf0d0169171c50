"""Pipelines from a bucket into a bucket: each record once wherever a run is killed, and through outages."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from lab.choice import some
from lab.kills import crashing, hooked
from lab.s3_lab import S3Lab
from lab.s3_server import S3Server
from lab.support import DECODE, Lab
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
COUNT = 24


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession, s3: S3Lab) -> Lab:
    for i in range(COUNT):
        s3.put(f"in/{i:02}.json", json.dumps({"i": i}).encode())
    return Lab(tmp_path, spark)


def build(lab: Lab, s3: S3Lab, name: str = "p", kind: str = "json", log: str = "positions", **more: str) -> None:
    """Ten objects a step into the folder ``NAME``; ``more``: settings of the destination."""
    given, out = s3.within("in").settings, {**s3.within(name).settings, "format": kind, **more}
    connectors = [
        {"id": "in", "type": "source", "plugin": "builtin:s3", "settings": given},
        {"id": "out", "type": "destination", "plugin": "builtin:s3", "settings": out},
    ]
    delivery = {"batch-size": 10, "strategy": "exactly-once", "log": log}
    lab.pipeline(id=name, connectors=connectors, processors=[DECODE], delivery=delivery)


def written(s3: S3Lab, name: str = "p") -> list[int]:
    """The numbers in the folder ``NAME``, in order."""
    return s3.within(name).numbers()


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("log", ["positions", "records"])
def test_each_object_once_over_steps_and_runs(lab: Lab, s3: S3Lab, kind: str, log: str) -> None:
    build(lab, s3, kind=kind, log=log)
    assert lab.run().error is None
    assert written(s3) == list(range(COUNT)) and len(s3.within("p").names()) == 3
    s3.put("in/99.json", b'{"i": 99}')
    s3.remove("in/00.json")
    assert lab.run().error is None
    rows = s3.within("p").rows()
    assert json.loads(rows[-2]["payload"]) == {"i": 99} and rows[-2]["operation"] == "create"
    assert (rows[-1]["operation"], rows[-1]["payload"]) == ("delete", "") and rows[-1]["key"].endswith("in/00.json")


@pytest.mark.parametrize("kind", some(["json"], ["parquet"]))
def test_killed_at_each_line(lab: Lab, s3: S3Lab, kind: str) -> None:
    passed = Counter[str]()
    build(lab, s3, "whole", kind)
    with hooked(lambda point, pipeline: passed.update([point])):
        assert lab.run("whole").error is None
    del passed["after-lease"]  # a crash in this process keeps the lease
    assert "mid-publish" in passed
    for number, point in enumerate(passed):
        name = f"p{number}"
        build(lab, s3, name, kind)
        with crashing(point, min(passed[point], 2)):
            lab.run(name)
        assert lab.run(name).error is None
        assert written(s3, name) == list(range(COUNT)), point


def test_a_store_that_is_away_is_an_outage(lab: Lab, s3: S3Lab) -> None:
    """The prepared step is delivered once the store is back."""
    build(lab, s3)
    with hooked(lambda point, _: s3.server.stop() if point == "before-publish" else None):
        result = lab.run()
    try:
        assert result.error is not None and result.error.code == "file.unreachable"
    finally:
        s3.server.start()
    assert lab.run().error is None
    assert written(s3) == list(range(COUNT))


@pytest.mark.parametrize("setting", ["prefix", "slash", "aws.endpoint"])
def test_another_place_under_a_published_step_is_refused(lab: Lab, s3: S3Lab, setting: str) -> None:
    """The step would not be found there, and its records would be written once more."""
    key, other = {
        "prefix": ("prefix", f"{s3.prefix}/other"),
        "slash": ("prefix", f"/{s3.prefix}/p"),
        "aws.endpoint": ("aws.endpoint", f"{s3.server.address}/"),
    }[setting]
    build(lab, s3)
    with crashing("mid-publish"):
        lab.run()
    build(lab, s3, **{key: other})
    refused = lab.run()
    assert refused.error is not None and refused.error.code == "delivery.target_changed"
    build(lab, s3)
    assert lab.run().error is None
    build(lab, s3, **{key: other})
    assert lab.run().error is None
    assert written(s3) + (written(s3, "other") if setting == "prefix" else []) == list(range(COUNT))


def test_no_secret_is_told(lab: Lab, s3: S3Lab) -> None:
    if not isinstance(s3.server, S3Server):
        pytest.skip("this server takes any secret")
    build(lab, s3)
    with s3.server.other_secret():
        error = lab.run().error
    assert error is not None and error.code == "file.no_permission"
    assert s3.server.secret not in f"{error!r} {error.fix} {error.message}"
    kept = b"".join(path.read_bytes() for path in lab.root.rglob("*") if path.is_file() and path.suffix != ".yaml")
    assert s3.server.secret.encode() not in kept
