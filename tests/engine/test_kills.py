"""SIGKILL before and after each line of the protocol: after a restart nothing is missing and nothing is doubled."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import DECODE, Lab, destination, processor, queue, source

from conduit_dagster.recovery.kill_points import POINTS

HERE = Path(__file__).parent
CUTTING = ("before-replan", "after-replan")
COUNT = 60

pytestmark = [pytest.mark.slow]


def killed(lab: Lab, server: Any, at: str) -> None:
    """Runs the pipeline in a process of its own, which must die at the named point."""
    env = {**server.env, "CONDUIT_KILL_AT": at, "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, str(HERE / "killed_run.py"), str(lab.root), server.url]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == -signal.SIGKILL, f"never reached {at}: {run.stdout[-2000:]}{run.stderr[-2000:]}"


def build(lab: Lab, destinations: int, nacks: tuple[int, ...], window: dict[str, Any]) -> None:
    """Two steps of 30 records with filtered and nacked ones; the second destination changes its records."""
    lab.write("in.jsonl", [{"i": i} for i in range(COUNT)])
    refuse = processor("refuse", "error", f"after.i in {list(nacks)}", message="bad {{ .Payload.After.i }}")
    outputs = [
        destination("out"),
        destination("out2", processors=[processor("m", "field.set", field=".Payload.After.m", value="2")]),
    ]
    lab.pipeline(
        connectors=[source(), *outputs[:destinations]],
        processors=[DECODE, refuse, processor("skip", "filter", "after.i % 10 == 5")],
        delivery={"batch-size": 30},
        **{"dead-letter-queue": window},
    )


def expected(upto: int, nacks: tuple[int, ...]) -> list[int]:
    return [i for i in range(upto) if i not in nacks and i % 10 != 5]


@pytest.mark.parametrize("destinations", [1, 2])
@pytest.mark.parametrize("point", [p for p in POINTS if p not in CUTTING])
def test_killed_at_each_line(
    point: str, destinations: int, tmp_path: Path, spark: SparkSession, connect_server: Any
) -> None:
    """At the point's second passage, so that there is a step behind it: a file gets every line once, in order."""
    lab, nacks = Lab(tmp_path, spark), (3, 29, 30, 44)
    build(lab, destinations, nacks, queue())
    killed(lab, connect_server, point if point == "after-lease" else f"{point}:2")
    result = lab.run()
    assert (result.status, result.error) == ("stopped", None)
    wanted = expected(COUNT, nacks)
    assert [row["i"] for row in lab.documents("out.jsonl")] == wanted
    if destinations == 2:
        assert lab.documents("out2.jsonl") == [{"i": i, "m": "2"} for i in wanted]
    assert [after["i"] for _, _, after in lab.letters()] == list(nacks)
    assert lab.run().progress.read == 0


@pytest.mark.parametrize("destinations", [1, 2])
@pytest.mark.parametrize("point", CUTTING)
def test_killed_while_a_step_is_cut(
    point: str, destinations: int, tmp_path: Path, spark: SparkSession, connect_server: Any
) -> None:
    """The third nack exceeds the threshold: everything before it is delivered once, it and what follows never."""
    lab, nacks = Lab(tmp_path, spark), (31, 33, 34)
    build(lab, destinations, nacks, queue(5, 2))
    killed(lab, connect_server, point)
    result = lab.run()
    assert result.error is not None
    assert "bad 34" in result.error.message
    wanted = expected(34, nacks)
    assert [row["i"] for row in lab.documents("out.jsonl")] == wanted
    if destinations == 2:
        assert [row["i"] for row in lab.documents("out2.jsonl")] == wanted
    assert [after["i"] for _, _, after in lab.letters()] == [31, 33]


def test_killed_again_and_again_during_recovery(tmp_path: Path, spark: SparkSession, connect_server: Any) -> None:
    """Recovery can be killed at any line and repeated."""
    lab, nacks = Lab(tmp_path, spark), (3, 29, 30, 44)
    build(lab, 2, nacks, queue())
    for at in (
        "after-prepare",
        "after-lease",
        "before-publish",
        "after-publish",
        "after-delivered",
        "before-done",
    ):
        killed(lab, connect_server, at)
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == expected(COUNT, nacks)
    assert [row["i"] for row in lab.documents("out2.jsonl")] == expected(COUNT, nacks)
    assert [after["i"] for _, _, after in lab.letters()] == list(nacks)
