"""``sql`` in a pipeline: Spark computes in the stage's own tasks, and the guarantees are those of any other step."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.choice import WHOLE
from lab.kills import crashing, hooked
from lab.stopping import forced_stop_once
from lab.support import DECODE, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.spark.sql.sql_session import BATCH, forget_sql_session, sql_session

TOTAL = "SELECT *, price * count AS total FROM record WHERE count <> 0"
COLUMNS = "price DECIMAL(10, 2), count INT"
EXACTLY = {"batch-size": 6, "strategy": "exactly-once"}


def sql(name: str = "q", query: str = TOTAL, columns: str = COLUMNS, condition: str | None = None) -> dict[str, Any]:
    return processor(name, "sql", condition, columns=columns, query=query)


def build(lab: Lab, *processors: Any, name: str = "p", **more: Any) -> None:
    usual: dict[str, Any] = {
        "connectors": [source(), destination(path=f"./{name}.jsonl")],
        "processors": [DECODE, *(processors or [sql()])],
        "dead-letter-queue": queue(path=f"./{name}-dead.jsonl"),
    }
    lab.pipeline(id=name, **{**usual, **more})


def rows(count: int) -> list[dict[str, Any]]:
    return [{"i": i, "price": i + 0.25, "count": i % 3, "note": "n" * (i % 7)} for i in range(count)]


def expected(count: int) -> list[dict[str, Any]]:
    return [{**row, "total": row["price"] * row["count"]} for row in rows(count) if row["count"]]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", rows(20))
    return lab


@pytest.mark.parametrize("count", [1, 2, BATCH - 1, BATCH, BATCH + 1, 3_000, 60_000])
def test_blocks_of_any_size_keep_their_order(lab: Lab, count: int) -> None:
    """Through Spark's buffers: a query is answered whether it fills them or not."""
    lab.write("in.jsonl", rows(count))
    build(lab)
    assert lab.run().error is None
    assert lab.documents("p.jsonl") == expected(count)


def test_large_records_go_through(lab: Lab) -> None:
    """Queries with more data than all buffers between the halves hold together."""
    wanted = [{"i": i, "s": f"{i}" * 90_000} for i in range(90)]
    lab.write("in.jsonl", wanted)
    build(lab, sql(query="SELECT *, reverse(s) AS r FROM record", columns="s STRING"))
    assert lab.run().error is None
    assert lab.documents("p.jsonl") == [{**row, "r": row["s"][::-1]} for row in wanted]


def test_one_job_of_spark_and_no_shuffle(lab: Lab, spark: SparkSession) -> None:
    """The source is read once, in the tasks that stage it."""
    build(lab)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    assert lab.run().error is None
    [job] = set(tracker.getJobIdsForGroup()) - before
    info = tracker.getJobInfo(job)
    assert info is not None and len(info.stageIds) == 1


def test_several_and_wherever_processors_stand(lab: Lab) -> None:
    """After the source, twice in the pipeline with the same text, in one of two destinations, with a condition."""
    again = "SELECT *, i + 1 AS i FROM record"
    first = source() | {"processors": [DECODE, sql("a", "SELECT *, upper(note) AS note FROM record", "note STRING")]}
    own = destination("own", processors=[sql("d", "SELECT i, note FROM record WHERE i > 15", "i INT, note STRING")])
    steps = [sql("b", again, "i INT"), sql("c", again, "i INT", condition="after.i % 2 == 1")]
    lab.pipeline(connectors=[first, destination(), own], processors=steps)
    assert lab.run().error is None
    moved = [{**row, "i": row["i"] + 1 + (row["i"] + 1) % 2, "note": row["note"].upper()} for row in rows(20)]
    assert lab.documents("out.jsonl") == moved
    assert lab.documents("own.jsonl") == [{"i": r["i"], "note": r["note"]} for r in moved if r["i"] > 15]


@pytest.mark.parametrize("delivery", [{"log": "records"}, {"max-in-flight": 3, "batch-size": 4}, {"batch-size": 1}])
def test_with_a_log_and_several_steps(lab: Lab, delivery: dict[str, Any]) -> None:
    build(lab, delivery=delivery)
    assert lab.run().error is None
    assert lab.documents("p.jsonl") == expected(20)


def test_behind_what_is_not_deterministic(lab: Lab) -> None:
    """Nothing is read twice: a query sees the same records that continue."""
    (lab.root / "mine.py").write_text(
        "import random\n\ndef mix(record):\n    record.after['r'] = random.random()\n    return record\n"
    )
    mix = processor("mix", "python", function="mine:mix")
    build(lab, mix, sql(query="SELECT r, r * 2 AS d FROM record", columns="r DOUBLE"))
    assert lab.run().error is None
    found = lab.documents("p.jsonl")
    assert len(found) == 20 and all(row["d"] == row["r"] * 2 for row in found)


@pytest.fixture
def unusual_context(spark: SparkSession) -> Iterator[None]:
    """Settings that a project's ``spark.conf`` gives each new session."""
    context: Any = spark.sparkContext
    conf = context._jsc.sc().conf()
    own = {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
        "spark.sql.legacy.castComplexTypesToString.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.execution.arrow.compression.codec": "zstd",
    }
    forget_sql_session(spark)
    for key, value in own.items():
        conf.set(key, value)
    yield
    for key in own:
        conf.remove(key)
    forget_sql_session(spark)


@pytest.mark.usefixtures("unusual_context")
def test_settings_of_the_project_change_no_result(lab: Lab, spark: SparkSession) -> None:
    lab.write("in.jsonl", [{"at": "2024-05-01T12:00:00Z", "s": "a\tb"}])
    results = {
        "at": "CAST('2024-05-01T12:00:00Z' AS TIMESTAMP)",
        "text": "to_json(named_struct('x', CAST(NULL AS INT)))",
        "list": "CAST(array(1, NULL) AS STRING)",
        "quoted": '"text"',
        "matches": "s RLIKE '^a\\\\sb$'",
    }
    build(
        lab,
        sql(
            query=f"SELECT {', '.join(f'{of} AS {name}' for name, of in results.items())} FROM record",
            columns="s STRING",
        ),
    )
    assert lab.run().error is None
    [found] = lab.documents("p.jsonl")
    assert found == {
        "at": "2024-05-01T12:00:00.000000Z", "text": "{}", "list": "[1, null]", "quoted": "text", "matches": True
    }  # fmt: skip
    # compressed filler rows would push nothing, and each question would take a minute
    assert sql_session(spark).conf.get("spark.sql.execution.arrow.compression.codec") == "none"


# -- nacks --------------------------------------------------------------------------------------------------------


def test_nacks_are_dead_letters_and_are_replayed(lab: Lab) -> None:
    """One of each kind; the others continue, and with a fixed query so do these."""
    bad = [{"a": 1, "b": 0}, "[1]", {"a": "x"}, {"a": 2**70, "b": 1}]
    lab.write("in.jsonl", [*bad[:3], {"a": 6, "b": 3}, bad[3], {"a": 1, "b": 1}])
    build(lab, sql(query="SELECT a, a / b AS q FROM record", columns="a BIGINT, b INT"))
    assert lab.run().error is None
    assert lab.documents("p.jsonl") == [{"a": 6, "q": 2.0}, {"a": 1, "q": 1.0}]
    letters = lab.letters("p-dead.jsonl")
    assert [node for node, _, _ in letters] == ["p:q", "p:decode", "p:q", "p:q"]
    assert "a / b AS q" in letters[0][1] and "the field a is not BIGINT, but text" in letters[2][1]
    build(lab, sql(query="SELECT a, try_divide(1, b) AS q FROM record", columns="a DECIMAL(38, 0), b INT"))
    # two of them are still invalid
    assert lab.replay()["replayed"] == 2
    assert lab.documents("p.jsonl")[2:] == [{"a": 1, "q": None}, {"a": 2**70, "q": 1.0}]


def test_the_nack_window_cuts_a_step(lab: Lab) -> None:
    """Records before the nack that is one too many are delivered once, the rest after the query is fixed."""
    query = "SELECT i, 10 / (i - 13) AS q FROM record"
    build(lab, sql(query=query, columns="i INT"), delivery={"strategy": "exactly-once"}, **{
        "dead-letter-queue": queue(1, 0, "./p-dead.jsonl")
    })  # fmt: skip
    failed = lab.run().error
    assert failed is not None and failed.fatal and "10 / (i - 13) AS q" in failed.message
    assert [row["i"] for row in lab.documents("p.jsonl")] == list(range(13))
    build(lab, sql(query="SELECT i FROM record", columns="i INT"))
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("p.jsonl")] == list(range(20))


def test_a_query_that_spark_does_not_take_is_fatal(lab: Lab) -> None:
    """Types are checked by Spark, once it runs: nothing is read, and the message is Spark's."""
    build(lab, sql(query="SELECT date_add(i, note) AS x FROM record", columns="i INT, note STRING"))
    failed = lab.run().error
    assert failed is not None and failed.fatal
    assert (failed.code, failed.node) == ("sql.query", "p:q") and "date_add(i, note)" in failed.message
    build(lab, sql(query="SELECT i FROM record WHERE i", columns="i INT"))
    failed = lab.run().error
    assert failed is not None and failed.code == "sql.query" and "WHERE is a int" in failed.message
    build(lab)
    assert lab.run().error is None
    assert lab.documents("p.jsonl") == expected(20)


# -- crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_each_line(lab: Lab) -> None:
    """Exactly once, at whichever point of the protocol a run ends: a third of them, ``make matrix`` tries all."""
    passed = Counter[str]()
    build(lab, name="whole", delivery=EXACTLY)
    with hooked(lambda point, pipeline: passed.update([point])):
        assert lab.run("whole").error is None
    assert lab.documents("whole.jsonl") == expected(20)
    del passed["after-lease"]  # a crash in this process keeps the lease
    for number, point in enumerate(passed if WHOLE else [*passed][::3]):
        name = f"p{number}"
        build(lab, name=name, delivery=EXACTLY)
        with crashing(point, min(passed[point], 2)):
            lab.run(name)
        assert lab.run(name).error is None
        assert lab.documents(f"{name}.jsonl") == expected(20), point


def test_staging_that_is_lost_is_staged_the_same_again(lab: Lab) -> None:
    build(lab, delivery=EXACTLY)
    with crashing("after-prepare", 2):
        lab.run()
    for path in [path for path in lab.root.rglob("*") if path.is_dir() and path.name == "out"]:
        for part in path.iterdir():
            part.unlink()
    assert lab.run().error is None
    assert lab.documents("p.jsonl") == expected(20)


# -- sessions -----------------------------------------------------------------------------------------------------


def test_the_session_of_a_run_stays_as_it_is(lab: Lab, spark: SparkSession) -> None:
    keys = ("spark.sql.ansi.enabled", "spark.sql.caseSensitive", "spark.sql.execution.arrow.maxRecordsPerBatch")
    before = [spark.conf.get(key) for key in keys]
    build(lab)
    assert lab.run().error is None
    assert [spark.conf.get(key) for key in keys] == before
    assert sql_session(spark).conf.get("spark.sql.caseSensitive") == "true"


RUN = """
import sys

from pathlib import Path

from lab.support import Lab
from conduit_dagster.spark.session import SparkSettings, close_session, open_session

spark = open_session(SparkSettings(sys.argv[1]), "sql")
lab = Lab(Path(sys.argv[2]), spark)
print(lab.run().error)
lab.write("in.jsonl", [{"i": 1, "price": 1, "count": 1}, {"price": "x"}], mode="a")
print(lab.run().error)
close_session(spark)
"""


@pytest.mark.slow
def test_through_connect(lab: Lab, connect_server: Any) -> None:
    """In a process of its own: one that has a classic session cannot also be a client."""
    build(lab)
    script = lab.root / "run.py"
    script.write_text(RUN)
    with connect_server.start(
        script, connect_server.url, lab.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        out, err = client.communicate(timeout=200)
    assert out.splitlines() == ["None", "None"], err[-3000:]
    assert lab.documents("p.jsonl") == [*expected(20), {"i": 1, "price": 1, "count": 1, "total": 1.0}]
    assert [node for node, _, _ in lab.letters("p-dead.jsonl")] == ["p:q"]


WAITING = """
import time
from pathlib import Path

def wait(record):
    root = Path({root!r})
    (root / "started").touch()
    while root.exists() and not (root / "go").exists():
        time.sleep(0.02)
    return record
"""


def test_a_forced_stop_between_two_questions(lab: Lab) -> None:
    """Nothing of a cancelled step counts, and the next one queries again."""
    (lab.root / "waiting.py").write_text(WAITING.format(root=str(lab.root)))
    steps = [sql(), processor("wait", "python", function="waiting:wait"), sql("r", "SELECT * FROM record", "i INT")]
    build(lab, *steps)
    forced_stop_once(lab, (lab.root / "started").exists, "the first question is answered")
    assert lab.documents("p.jsonl") == []
    (lab.root / "go").touch()
    assert lab.run().error is None
    assert lab.documents("p.jsonl") == expected(20)


DYING = """
import os, signal, socket, struct
from pathlib import Path

from conduit_dagster.spark.sql.query import evaluator

def die(record):
    mark = Path({mark!r})
    if record.after["i"] == {at} and not mark.exists():
        mark.touch()
        os.kill({whom}, signal.SIGKILL)
    return record
"""
ASKER = """struct.unpack("3i", evaluator()._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]"""
"""Who listens at the other end: other workers that wait for work must not be taken for it."""


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["os.getpid()", ASKER], ids=["the half that stages", "the half that asks"])
def test_a_worker_that_is_killed(lab: Lab, whom: str) -> None:
    """Between two queries. The task ends with an error, whichever half is gone, and the step is repeated."""
    lab.write("in.jsonl", rows(9_000))
    text = DYING.format(mark=str(lab.root / "mark"), at=7_000, whom=whom)
    (lab.root / "dying.py").write_text(text)
    steps = [
        sql(),
        processor("die", "python", function="dying:die"),
        sql("r", "SELECT * FROM record WHERE i >= 0", "i INT"),
    ]
    build(lab, *steps, delivery={"strategy": "exactly-once"})
    failed = lab.run().error
    assert (lab.root / "mark").exists()
    assert failed is not None and not failed.fatal
    assert lab.run().error is None
    assert lab.documents("p.jsonl") == expected(9_000)
