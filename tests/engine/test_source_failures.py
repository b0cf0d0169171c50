"""A source that fails in the middle of a range: what it gave before is delivered and acked, then the run fails.

A run makes progress or says why it cannot (DELIVERY.md, When the pipeline changes).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.support import Crashes, Lab, destination, processor, queue
from pyspark.sql import SparkSession

FAILING = '''
from pathlib import Path

from conduit_dagster.sdk import Block, ConnectorSettings, Source, Split
from conduit_dagster.record import Record


class NumbersSettings(ConnectorSettings):
    count: int = 20
    fail_at: int = 10
    first: int = 0


class Numbers(Source):
    """Numbers; it fails before one of them until the file ``mended`` is there."""

    name = "numbers"
    Settings = NumbersSettings
    knows_count = True

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return max(start, min(self.settings.count, start + limit.records))

    def split(self, start, end, n):
        size = max(1, -(-(end - start) // n))
        return [
            Split(low, low - start, min(size, end - low) if self.knows_count else None, 2_000_000, {"to": to})
            for low in range(start, end, size)
            for to in [min(low + size, end)]
        ]

    def read(self, split, options):
        records = []
        for i in range(split.start, split.detail["to"]):
            if i == self.settings.fail_at and not Path(self.context.root, "mended").exists():
                if records:
                    yield records
                raise ValueError(f"number {i} is out of reach")
            records.append(Record(i + 1, {}, {"i": self.settings.first + i}))
            if len(records) == 3:
                yield Block.of(records)
                records = []
        if records:
            yield records

    def ack(self, upto, generation):
        with Path(self.context.root, f"{self.context.connector}.acks").open("a") as file:
            file.write(f"{upto}\\n")


class Uncounted(Numbers):
    name = "uncounted"
    knows_count = False


class Limited(Numbers):
    """Its server gives ten numbers, and then none to the next request."""

    name = "limited"

    def read(self, split, options):
        path = Path(self.context.root, "reads")
        reads = len(path.read_text()) if path.exists() else 0
        path.write_text("." * (reads + 1))
        left = 10 if reads % 2 == 0 else 0
        for given in super().read(split, options):
            records = getattr(given, "records", given)
            if len(records) > left:
                if left:
                    yield records[:left]
                raise ConnectionError("too many requests")
            left -= len(records)
            yield records


class Once(Numbers):
    name = "once"
    replayable = False
    knows_count = False
'''


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "failing.py").write_text(FAILING)
    return lab


def failing(name: str = "in", plugin: str = "numbers", **settings: int) -> dict[str, Any]:
    return {"id": name, "type": "source", "plugin": plugin, "settings": {k: str(v) for k, v in settings.items()}}


def build(lab: Lab, *connectors: Any, log: str = "positions", **more: Any) -> None:
    delivery = {"strategy": "exactly-once", "log": log, **more.pop("delivery", {})}
    more.setdefault("dead-letter-queue", queue())
    lab.pipeline(connectors=[*(connectors or (failing(),)), destination()], delivery=delivery, **more)


def values(lab: Lab) -> list[int]:
    return [row["i"] for row in lab.documents("out.jsonl")]


def acks(lab: Lab, name: str = "in") -> list[int]:
    return [int(line) for line in lab.lines(f"{name}.acks")]


def error_of(lab: Lab, **more: Any) -> tuple[bool, str]:
    error = lab.run(**more).error
    assert error is not None
    return error.fatal, error.message


OUT_OF_REACH = (False, "ValueError: number 10 is out of reach, in plugins/failing.py:41")


@pytest.mark.parametrize(
    ("plugin", "log"),
    [("numbers", "positions"), ("numbers", "records"), ("uncounted", "records"), ("once", "records")],
)
@pytest.mark.parametrize("tasks", [1, 4])
def test_what_it_gave_before_is_delivered_and_acked(lab: Lab, plugin: str, log: str, tasks: int) -> None:
    build(lab, failing(plugin=plugin), log=log)
    for _ in range(2):  # and a restart neither goes back nor doubles anything
        assert error_of(lab, parallelism=tasks) == OUT_OF_REACH
        assert values(lab) == list(range(10))
        assert acks(lab)[-1] == 10
    (lab.root / "mended").touch()
    assert lab.run(parallelism=tasks).error is None
    assert values(lab) == list(range(20))
    assert acks(lab)[-1] == 20


@pytest.mark.parametrize("log", ["positions", "records"])
def test_one_that_gives_less_when_it_is_read_again_gets_on(lab: Lab, log: str) -> None:
    """The cut step is read again at once, and a server that limits requests refuses that: each run began anew."""
    build(lab, failing(plugin="limited", fail_at=99, count=18), log=log)
    for got in (0, 10, 18):
        assert (lab.run(parallelism=1).error is None) == (got == 18)
        assert values(lab) == list(range(got))


def test_nothing_before_it_leaves_just_the_error(lab: Lab) -> None:
    build(lab, failing(fail_at=0))
    assert error_of(lab) == (False, OUT_OF_REACH[1].replace("10", "0"))
    assert lab.lines("out.jsonl") == []


@pytest.mark.parametrize("log", ["positions", "records"])
def test_other_sources_are_delivered_whole(lab: Lab, log: str) -> None:
    """Whichever comes first in the file, even if the failing one gives nothing at all."""
    build(
        lab, failing("a", fail_at=0), failing("b", fail_at=99, first=100), failing("c", fail_at=5, first=200), log=log
    )
    assert error_of(lab)[0] is False
    assert sorted(values(lab)) == [*range(100, 120), *range(200, 205)]
    assert (acks(lab, "b")[-1], acks(lab, "c")[-1]) == (20, 5)


@pytest.mark.parametrize("log", ["positions", "records"])
def test_a_refused_nack_before_the_failure_decides(lab: Lab, log: str) -> None:
    bad = processor("bad", "error", "after.i == 7", message="seven")
    build(lab, processors=[bad], log=log, **{"dead-letter-queue": queue(1, 0)})
    assert error_of(lab) == (True, "seven")
    assert values(lab) == list(range(7))


def test_steps_before_it_in_flight_are_delivered(lab: Lab) -> None:
    build(lab, delivery={"batch-size": 4, "max-in-flight": 3})
    assert error_of(lab) == OUT_OF_REACH
    assert values(lab) == list(range(10))
    (lab.root / "mended").touch()
    assert lab.run().error is None
    assert values(lab) == list(range(20))


@pytest.mark.parametrize("point", ["before-replan", "after-replan", "after-prepare", "before-done"])
@pytest.mark.parametrize("log", ["positions", "records"])
def test_killed_on_the_way(lab: Lab, crashes: Crashes, point: str, log: str) -> None:
    build(lab, log=log)
    crashes(lab, point)
    assert error_of(lab) == OUT_OF_REACH
    assert values(lab) == list(range(10))
    (lab.root / "mended").touch()
    assert lab.run().error is None
    assert values(lab) == list(range(20))


def test_members_of_a_join_are_logged_as_far_as_they_were_read(lab: Lab) -> None:
    build(lab, failing("a", "once"), failing("b", fail_at=99), log="records", **{"fan-in": "join"})
    assert error_of(lab) == OUT_OF_REACH
    assert [row["a"]["i"] for row in lab.documents("out.jsonl")] == list(range(10))
