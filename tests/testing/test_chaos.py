"""The ``chaos`` connectors in real pipelines: each fault shows with code and node; then nothing is lost or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lab.support import Lab, queue
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.cli.reference import connector_pages
from conduit_dagster.engine.plugin_loading import Plugins
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state.overview import source_rows
from conduit_dagster.testing import failures

pytestmark = pytest.mark.slow

ONE_RUN = Path(__file__).parents[1] / "lab" / "one_run.py"
TOTAL = 200
Settings = dict[str, Any]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def build(
    lab: Lab, source: Settings | None = None, out: Settings | None = None, plugin: str = "chaos", **config: Any
) -> None:
    """Steps of 50 records; ``source`` and ``out`` are added to the connectors' settings."""
    connectors = [
        {"id": "in", "type": "source", "plugin": "chaos", "settings": {"records": TOTAL, **(source or {})}},
        {"id": "out", "type": "destination", "plugin": plugin, "settings": {"path": "out.jsonl", **(out or {})}},
    ]
    strategy = "exactly-once" if plugin == "chaos" else "at-least-once"
    delivery = {"strategy": strategy, "batch-size": 50, **config.pop("delivery", {})}
    letters = config.pop("letters", queue())
    lab.pipeline(connectors=connectors, delivery=delivery, **{"dead-letter-queue": letters}, **config)


def at(connector: str, **settings: Any) -> dict[str, Settings]:
    """Settings of one of the two, for :func:`build`."""
    return {"source" if connector == "in" else "out": {k.replace("_", "-"): v for k, v in settings.items()}}


def ids(lab: Lab) -> list[int]:
    return [row["id"] for row in lab.documents("out.jsonl")]


def acked(lab: Lab) -> int:
    with lab.store() as database:
        return sum(row["acked"] for row in source_rows(database, "p"))


def failed(result: RunResult, code: str, node: str, fatal: bool = False) -> None:
    assert result.error is not None
    assert (result.error.code, result.error.node, result.error.fatal) == (code, node, fatal)


POINTS = [
    # connector, point, records that get through first, records in the file when it fails
    ("in", "open", 0, 0),
    ("in", "read", 120, 120),
    ("in", "ack", 120, 150),
    ("out", "open", 0, 0),
    ("out", "write", 120, 100),
    ("out", "publish", 120, 100),
    ("out", "ack", 120, 150),
]
ALL = list(range(1, TOTAL + 1))


@pytest.mark.parametrize(
    ("connector", "point", "after", "written", "log"),
    [*((*row, "positions") for row in POINTS), ("in", "read", 120, 120, "records"), ("in", "ack", 120, 150, "records")],
)
def test_a_fault_shows_k_times_then_all_is_there_once(
    lab: Lab, connector: str, point: str, after: int, written: int, log: str
) -> None:
    build(lab, **at(connector, fail_on=point, after=after, times=2, code=503), delivery={"log": log})
    for number in (1, 2):
        failed(lab.run(), "503", f"p:{connector}")
        assert failures(lab.root, "p", connector, point) == number
        # a delivery that the destination turns out to hold is not sent again: the one behind it then fails
        further = 50 if (connector, point, number) == ("out", "ack", 2) else 0
        assert ids(lab) == list(range(1, written + further + 1))
    assert lab.run().error is None
    assert ids(lab) == ALL
    assert failures(lab.root, "p", connector, point) == 2


@pytest.mark.parametrize(
    ("connector", "point", "after", "written", "log"),
    [*((*row, "positions") for row in POINTS), ("in", "read", 120, 120, "records")],
)
def test_an_exception_that_says_nothing_is_transient_and_names_its_node(
    lab: Lab, connector: str, point: str, after: int, written: int, log: str
) -> None:
    build(lab, **at(connector, fail_on=point, after=after, times="once"), delivery={"log": log})
    result = lab.run()
    assert result.error is not None
    assert "RuntimeError: chaos fails on " + point in result.error.message
    failed(result, result.error.code, f"p:{connector}")
    assert ids(lab) == list(range(1, written + 1))
    assert lab.run().error is None
    assert ids(lab) == ALL


@pytest.mark.parametrize(
    ("settings", "code", "fatal"),
    [
        ({"code": "503"}, "503", False),
        ({"code": "422"}, "422", True),
        ({"code": "422", "fatal": "false"}, "422", False),
        ({"code": "503", "fatal": "true"}, "503", True),
        ({"fatal": "true"}, "chaos.{}", True),
        ({"fatal": "false"}, "chaos.{}", False),
        ({"code": "503", "text": "json"}, "503", False),
        ({"code": "422", "text": "json"}, "422", True),
    ],
)
def test_an_error_is_what_its_settings_say(lab: Lab, settings: Settings, code: str, fatal: bool) -> None:
    """The same from a task (read) as from the driver (publish); CASES B8."""
    for connector, point in (("in", "read"), ("out", "publish")):
        build(lab, **at(connector, fail_on=point, times="once", **settings))
        result = lab.run()
        failed(result, code.format(point), f"p:{connector}", fatal)
        assert f"chaos fails on {point} (failure 1)" in str(result.error)
    assert lab.run().error is None
    assert ids(lab) == ALL


def test_always_fails_again_and_again(lab: Lab) -> None:
    build(lab, **at("in", fail_on="read", after=60, code=503))
    for number in range(1, 6):
        failed(lab.run(), "503", "p:in")
        assert failures(lab.root, "p", "in", "read") == number
    assert ids(lab) == list(range(1, 61))


def test_it_opens_until_so_many_records_are_through(lab: Lab) -> None:
    build(lab, {"records": 100, "fail-on": "open", "after": 100, "code": 503})
    assert lab.run().error is None
    failed(lab.run(), "503", "p:in")
    build(lab, {"records": 100}, {"fail-on": "open", "after": 100, "code": 503})
    assert lab.run().error is None  # counts from here on
    build(lab, {"records": 200}, {"fail-on": "open", "after": 100, "code": 503})
    assert lab.run().error is None
    failed(lab.run(), "503", "p:out")
    assert ids(lab) == list(range(1, 201))


def test_of_several_tasks_one_fails_per_attempt(lab: Lab) -> None:
    """Two tasks of 20000 records each: both read failing ones, and one failure counts."""
    settings = {"records": 40_000, "fail-on": "read", "after": 5, "times": 2, "code": 503}
    build(lab, settings, delivery={"batch-size": 40_000})
    for number in (1, 2):
        failed(lab.run(parallelism=2), "503", "p:in")
        assert failures(lab.root, "p", "in", "read") == number
    assert lab.run(parallelism=2).error is None
    assert ids(lab) == list(range(1, 40_001))


def test_until_a_file_exists(lab: Lab) -> None:
    build(lab, **at("out", fail_on="publish", code=503, until="healed"))
    failed(lab.run(), "503", "p:out")
    failed(lab.run(), "503", "p:out")
    (lab.root / "healed").touch()
    assert lab.run().error is None
    assert ids(lab) == ALL
    assert failures(lab.root, "p", "out", "publish") == 2


def test_while_a_file_exists(lab: Lab) -> None:
    build(lab, {"records": 50, "fail-on": "read", "code": 503, "while": "broken"})
    assert lab.run().error is None
    (lab.root / "broken").touch()
    build(lab, {"records": 100, "fail-on": "read", "code": 503, "while": "broken"})
    failed(lab.run(), "503", "p:in")
    (lab.root / "broken").unlink()
    assert lab.run().error is None
    assert ids(lab) == list(range(1, 101))


def test_slow_holds_up_each_block(lab: Lab) -> None:
    build(lab, **at("in", fail_on="read", mode="slow", slow_by="300ms", after=50))
    started = time.monotonic()
    assert lab.run(parallelism=1).error is None
    assert time.monotonic() - started >= 3 * 0.3
    assert failures(lab.root, "p", "in", "read") == 3
    assert ids(lab) == ALL


@pytest.mark.parametrize("connector", ["in", "out"])
def test_a_hang_in_a_task_ends_with_the_run(lab: Lab, connector: str) -> None:
    """A graceful stop waits for the shutdown timeout, then cancels; the step is read again."""
    point = "read" if connector == "in" else "write"
    settings = at(connector, fail_on=point, mode="hang", after=120, times="once")
    build(lab, **settings, delivery={"shutdown-timeout": "1s"})
    stop, results = StopFlag(), list[RunResult]()
    run = threading.Thread(target=lambda: results.append(lab.run(stop=stop)))
    run.start()
    # the step before is delivered beside it
    hangs = lambda: failures(lab.root, "p", connector, point) and acked(lab) == 100  # noqa: E731
    wait_until(hangs, "it hangs", over=lambda: not run.is_alive())
    stop.request()
    run.join(120)
    assert [(result.status, result.error) for result in results] == [("stopped", None)]
    assert ids(lab) == list(range(1, 101))
    assert lab.run().error is None
    assert ids(lab) == ALL


@pytest.mark.parametrize(("connector", "point"), [("in", "open"), ("in", "read"), ("out", "publish"), ("out", "ack")])
def test_a_hang_ends_where_its_file_says(lab: Lab, connector: str, point: str) -> None:
    build(lab, **at(connector, fail_on=point, mode="hang", until="go"))
    results = list[RunResult]()
    run = threading.Thread(target=lambda: results.append(lab.run()))
    run.start()
    wait_until(lambda: failures(lab.root, "p", connector, point), "it hangs", over=lambda: not run.is_alive())
    assert results == []
    (lab.root / "go").touch()
    run.join(120)
    assert [result.error for result in results] == [None]
    assert ids(lab) == ALL


def test_a_hang_lasts_as_long_as_it_is_told_to(lab: Lab) -> None:
    hang = {"mode": "hang", "hang_for": "1s", "times": "once"}
    build(lab, **at("out", fail_on="publish", **hang), delivery={"batch-size": TOTAL})
    started = time.monotonic()
    assert lab.run().error is None
    assert time.monotonic() - started >= 1
    assert ids(lab) == ALL


def test_a_kill_is_counted_once(lab: Lab) -> None:
    """A process killed while it hangs has used up its one time."""
    build(lab, **at("out", fail_on="ack", mode="hang", after=120, times="once"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ONE_RUN.parents[1:3]))}
    run = subprocess.Popen([sys.executable, ONE_RUN, lab.root, "local[2]"], env=env, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: failures(lab.root, "p", "out", "ack"), "it hangs", 250, over=lambda: run.poll() is not None)
    finally:
        run.kill()
        run.wait()
    assert ids(lab) == list(range(1, 151))
    assert lab.run().error is None
    assert ids(lab) == ALL
    assert failures(lab.root, "p", "out", "ack") == 1


@pytest.mark.parametrize("plugin", ["chaos", "chaos.direct"])
def test_a_writer_nacks_single_records(lab: Lab, plugin: str) -> None:
    build(lab, None, {"fail-on": "write", "mode": "nack", "after": 70, "times": 3}, plugin, letters=queue(5, 3))
    result = lab.run()
    assert (result.error, result.progress.nacked, result.progress.dead_lettered) == (None, 3, 3)
    assert [(node, after["id"]) for node, _, after in lab.letters()] == [("p:out", 71), ("p:out", 72), ("p:out", 73)]
    assert ids(lab) == [n for n in range(1, TOTAL + 1) if n not in (71, 72, 73)]


def test_a_nack_without_a_queue_is_transient(lab: Lab) -> None:
    """CASES B7: earlier records are delivered, and the next run continues with it."""
    out = {"fail-on": "write", "mode": "nack", "after": 70, "times": "once", "code": 503}
    build(lab, None, out, letters=queue(1, 0))
    failed(lab.run(), "503", "p:out")
    assert ids(lab) == list(range(1, 71))
    assert lab.run().error is None
    assert ids(lab) == ALL


def test_a_dead_letter_queue_that_fails(lab: Lab) -> None:
    """CASES A7."""
    letters = queue(5, 3)
    letters["plugin"] = "chaos"
    letters["settings"] |= {"sdk.record.format": "opencdc/json", "fail-on": "publish", "times": 2, "code": 503}
    build(lab, None, {"fail-on": "write", "mode": "nack", "after": 70, "times": "once"}, letters=letters)
    for _ in range(2):
        failed(lab.run(), "503", "p:dead_letters")
        assert ids(lab) == list(range(1, 51))
    assert lab.run().error is None
    assert [after["id"] for _, _, after in lab.letters()] == [71]
    assert ids(lab) == [n for n in range(1, TOTAL + 1) if n != 71]


@pytest.mark.parametrize(("point", "twice"), [("open", []), ("write", []), ("ack", list(range(101, 151)))])
def test_a_direct_destination(lab: Lab, point: str, twice: list[int]) -> None:
    """At least once: only records that were written, and whose ack was lost, are duplicated."""
    after = 0 if point == "open" else 120
    build(lab, None, {"fail-on": point, "after": after, "times": "once", "code": 503}, "chaos.direct")
    failed(lab.run(), "503", "p:out")
    assert lab.run().error is None
    seen = Counter(ids(lab))
    assert sorted(seen) == ALL
    assert [n for n, times in seen.items() if times > 1] == twice
    assert max(seen.values()) <= 2


def test_a_bulk_error_of_a_direct_destination_is_sent_one_by_one(lab: Lab) -> None:
    build(lab, None, {"fail-on": "write", "after": 120, "times": "once"}, "chaos.direct")
    failed(lab.run(), "delivery.bulk_failed", "p:out")
    assert lab.run().error is None
    assert ids(lab) == ALL


def test_collections_take_turns(lab: Lab) -> None:
    build(lab, {"collections": "orders, users, items", "records": 100}, {"sdk.record.format": "opencdc/json"})
    assert lab.run().error is None
    rows = lab.documents("out.jsonl")
    names = ["orders", "users", "items"]
    assert [row["metadata"]["opencdc.collection"] for row in rows] == [names[n % 3] for n in range(100)]
    assert [row["payload"]["after"]["id"] for row in rows] == list(range(1, 101))


@pytest.mark.parametrize(
    ("connector", "settings", "hint"),
    [
        ("in", {"fail-on": "read", "code": "9999999"}, "for example 503"),
        ("in", {"fail-on": "read", "code": "no such code"}, "for example 503"),
        ("in", {"fail-on": "read", "mode": "nack"}, "set fail-on: write"),
        ("out", {"fail-on": "publish", "mode": "nack"}, "set fail-on: write"),
        ("out", {"fail-on": "write", "text": "json"}, "set code"),
        ("out", {"fail-on": "write", "text": "json", "code": "503", "fatal": "true"}, "remove fatal"),
        ("out", {"fail-on": "write", "until": "a", "while": "b"}, "set one of them"),
        ("out", {"fail-on": "write", "times": "0"}, "a number of 1 or more"),
        ("out", {"fail-on": "write", "times": "twice"}, "a number of 1 or more"),
        ("out", {"fail-on": "read"}, "'publish'"),
        ("in", {"fail-on": "publish"}, "'read'"),
        ("in", {"fail-on": "read", "hang-for": "5"}, "5s"),
    ],
)
def test_settings_that_make_no_sense_are_one_finding(
    tmp_path: Path, connector: str, settings: Settings, hint: str
) -> None:
    lab = Lab(tmp_path)
    build(lab, **at(connector, **settings))
    [finding] = lab.catalogue().findings
    assert (finding.code, finding.severity) == ("setting.invalid", "error")
    assert hint in f"{finding.expected} {finding.fix}"


def test_it_is_listed_with_the_other_connectors() -> None:
    pages = [(page.name, page.kind) for page in connector_pages(Plugins())]
    assert {("chaos", "source"), ("chaos", "destination"), ("chaos.direct", "destination")} <= set(pages)
