"""A process that is asked to stop while something hangs ends soon after the shutdown timeout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab.choice import in_matrix, some
from lab.freezing import frozen
from lab.hanging_plugin import COUNTING, HANGING, HOLDING
from lab.postgres_server import PostgresServer, installations
from lab.support import Lab, destination, queue, source
from lab.waiting import wait_until

from conduit_dagster.spark.server import stop_server
from conduit_dagster.spark.server_files import ServerFiles
from conduit_dagster.state.overview import pipeline_rows, source_rows

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TIMEOUT = 3.0
LONGEST = TIMEOUT + 30
"""Two seconds more than the timeout on a machine of its own; beside other tests an interpreter alone takes several to
end. What hangs would hang for ten minutes."""


@pytest.fixture
def lab(tmp_path: Path, connected: None) -> Lab:
    lab = Lab(tmp_path)
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "hanging.py").write_text(HANGING)
    build(lab)
    return lab


def build(lab: Lab, plugin: str = "holding", **more: Any) -> None:
    delivery = {"strategy": "exactly-once", "shutdown-timeout": f"{TIMEOUT}s"}
    lab.pipeline(
        connectors=[COUNTING, {**HOLDING, "plugin": plugin}],
        delivery=delivery,
        **{"dead-letter-queue": queue(), "trigger": "continuous", **more},
    )


@contextmanager
def started(lab: Lab, *words: str, output: str = "output.log", **env: str) -> Iterator[subprocess.Popen[bytes]]:
    own = {"PYTHONPATH": str(ROOT), "CONDUIT_WARM_SECONDS": "0", **env}
    with (lab.root / output).open("wb") as log:
        # a shell without job control leaves SIGINT ignored
        process = subprocess.Popen(
            words, cwd=lab.root, env={**os.environ, **own}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def conduit(*words: str) -> list[str]:
    return [str(BIN / "conduit-dagster"), *words]


def in_dagster(lab: Lab) -> list[str]:
    """The command, and a folder for Dagster's own files."""
    home = lab.root / "dagster"
    home.mkdir()
    (home / "dagster.yaml").touch()
    return [str(BIN / "dagster"), "job", "execute", "-m", "conduit_dagster.definitions", "-j", "p"]


def spark_of(point: str) -> dict[str, str]:
    """In the environment: one point has a local session, whose JVM must end too."""
    return {"CONDUIT_SPARK_URL": "local[1]"} if point == "publish" else {}


def hanging(lab: Lab, point: str) -> None:
    """The pipeline hangs there. Only refused records are claimed."""
    build(lab, "refusing" if point == "claim" else "holding")
    (lab.root / f"hang-{point}").touch()


def was_left(lab: Lab) -> None:
    """The run reports where it hung, and has ended as stopped."""
    assert "hang in plugins/hanging.py" in (lab.root / "output.log").read_text()
    with lab.store() as database:
        row = pipeline_rows(database)["p"]
    assert (row["status"], row["owner"]) == ("stopped", None)


def wait_until_it_hangs(lab: Lab, process: subprocess.Popen[bytes]) -> None:
    wait_until(
        lambda: (lab.root / "hangs").exists(),
        "it hangs",
        240,
        over=lambda: process.poll() is not None,
        said=lambda: (lab.root / "output.log").read_text()[-4000:],
    )


def seconds_to_end(process: subprocess.Popen[bytes], number: int) -> float:
    begun = time.monotonic()
    process.send_signal(number)
    process.wait(60)
    seconds = time.monotonic() - begun
    print(f"ended after {seconds:.1f} s, of which {TIMEOUT:g} s may pass")
    return seconds


@pytest.mark.parametrize("point", some(["publish", "ack"], ["claim", "check", "latest"]))
def test_run_ends_at_a_signal(lab: Lab, point: str) -> None:
    hanging(lab, point)
    with started(lab, *conduit("run"), **spark_of(point)) as process:
        wait_until_it_hangs(lab, process)
        assert seconds_to_end(process, signal.SIGTERM) < LONGEST
        assert process.returncode == 0
    was_left(lab)


@pytest.mark.parametrize("point", some(["claim", "latest"], ["publish", "check", "ack"]))
def test_pipelines_stop_ends_it(lab: Lab, point: str) -> None:
    hanging(lab, point)
    with started(lab, *conduit("run")) as process:
        wait_until_it_hangs(lab, process)
        begun = time.monotonic()
        with started(lab, *conduit("pipelines", "stop", "p"), output="stop.log") as stopper:
            stopper.wait(120)
            assert stopper.returncode == 0, (lab.root / "stop.log").read_text()
        # the command itself takes a second to start, and looks twice a second
        seconds = time.monotonic() - begun
        print(f"stopped after {seconds:.1f} s, of which {TIMEOUT:g} s may pass")
        assert seconds < LONGEST + 2
        process.wait(60)
        assert process.returncode == 0
    was_left(lab)


@pytest.mark.parametrize("number", some([signal.SIGTERM], [signal.SIGINT]))
@pytest.mark.parametrize("point", some(["check"], ["publish", "claim", "latest", "ack"]))
def test_a_run_in_dagster_ends(lab: Lab, point: str, number: int) -> None:
    hanging(lab, point)
    with started(lab, *in_dagster(lab), DAGSTER_HOME=str(lab.root / "dagster"), **spark_of(point)) as process:
        wait_until_it_hangs(lab, process)
        assert seconds_to_end(process, number) < LONGEST, (lab.root / "output.log").read_text()[-3000:]
    was_left(lab)


@pytest.mark.parametrize("way", some(["dagster"], ["run"]))
def test_a_source_whose_lag_hangs_is_delivered_and_stops_in_order(lab: Lab, way: str) -> None:
    (lab.root / "hang-lag").touch()
    command = conduit("run") if way == "run" else in_dagster(lab)
    with started(lab, *command, DAGSTER_HOME=str(lab.root / "dagster")) as process:
        acks = lab.root / "acks"
        wait_until(lambda: acks.exists() and "5" in acks.read_text().split(), "all is acked", 240)
        assert seconds_to_end(process, signal.SIGTERM) < LONGEST
    with lab.store() as database:
        assert pipeline_rows(database)["p"]["status"] == "stopped"
    output = (lab.root / "output.log").read_text()
    assert "hang in plugins" not in output and "a stop hangs" not in output


@pytest.mark.parametrize("busy", some([True], [False]))
def test_a_spark_server_that_is_frozen(lab: Lab, busy: bool) -> None:
    lab.write("in.jsonl", [{"i": 1}])
    delivery = {"shutdown-timeout": f"{TIMEOUT}s"}
    lab.pipeline(connectors=[source(), destination()], delivery=delivery, trigger="continuous")
    home = lab.root / ".conduit"
    try:
        with started(lab, *conduit("run"), CONDUIT_SPARK_URL="shared", CI="") as process:
            wait_until(lambda: (home / "state.db").exists() and acked(lab) == 1, "a record is acked", 240)
            server = ServerFiles(home).read()
            assert server is not None
            with frozen(server.pid):
                if busy:
                    lab.write("in.jsonl", [{"i": 2}], mode="a")
                    wait_until(lambda: planned(lab) > 1, "it has begun a step")
                assert seconds_to_end(process, signal.SIGTERM) < LONGEST
                assert process.returncode == 0
    finally:
        stop_server(home)
    said = (lab.root / "output.log").read_text()
    assert ("still in action" if busy else "the Spark server does not answer") in said


@pytest.mark.parametrize("busy", some([False], [True]))
def test_a_jvm_of_its_own_that_is_frozen(lab: Lab, busy: bool) -> None:
    lab.write("in.jsonl", [{"i": 1}])
    delivery = {"shutdown-timeout": f"{TIMEOUT}s"}
    lab.pipeline(connectors=[source(), destination()], delivery=delivery, trigger="continuous")
    with started(lab, *conduit("run"), CONDUIT_SPARK_URL="local[1]") as process:
        wait_until(lambda: (lab.root / ".conduit" / "state.db").exists() and acked(lab) == 1, "a record is acked", 240)
        [jvm] = [child for child in psutil.Process(process.pid).children() if child.name() == "java"]
        with frozen(jvm.pid):
            if busy:
                lab.write("in.jsonl", [{"i": 2}], mode="a")
                wait_until(lambda: planned(lab) > 1, "it has begun a step")
            assert seconds_to_end(process, signal.SIGTERM) < LONGEST
        jvm.wait(60)  # it ends with the process that started it
    said = (lab.root / "output.log").read_text()
    assert ("still in" in said) == busy


def acked(lab: Lab) -> int:
    with lab.store() as database:
        return sum(row["acked"] for row in source_rows(database, "p"))


def planned(lab: Lab) -> int:
    with lab.store() as database:
        return pipeline_rows(database)["p"]["step"]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    found = installations()
    if not found:
        pytest.skip("no PostgreSQL: install Debian's postgresql, or pgserver (Python 3.12 or older)")
    server = PostgresServer(found[0])
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("way", some(["run"], ["dagster"]))
def test_a_state_store_that_is_frozen(lab: Lab, server: PostgresServer, way: str) -> None:
    """The stop can't be recorded: the next run finds a dead owner, as after a kill."""
    hanging(lab, "publish")
    words = in_dagster(lab) if way == "dagster" else conduit("run")
    env = {"CONDUIT_STATE_URL": server.create_database(), "DAGSTER_HOME": str(lab.root / "dagster")}
    with started(lab, *words, **env) as process:
        wait_until_it_hangs(lab, process)
        with server.frozen():
            (lab.root / "hang-publish").unlink()
            assert seconds_to_end(process, signal.SIGTERM) < LONGEST, (lab.root / "output.log").read_text()[-3000:]
    next_run_delivers(lab, **env)


@in_matrix
def test_pipelines_stop_with_a_state_store_that_freezes(lab: Lab, server: PostgresServer) -> None:
    """The run has received it, and ends in time; the command reports that the state store does not answer."""
    hanging(lab, "publish")
    env = {"CONDUIT_STATE_URL": server.create_database()}
    with started(lab, *conduit("run"), **env) as process:
        wait_until_it_hangs(lab, process)
        with started(lab, *conduit("pipelines", "stop", "p"), output="stop.log", **env) as stopper:
            heard = lab.root / "output.log"
            wait_until(lambda: "a stop was asked for" in heard.read_text(), "the run hears of it")
            begun = time.monotonic()
            with server.frozen():
                (lab.root / "hang-publish").unlink()
                process.wait(60)
                seconds = time.monotonic() - begun
                print(f"ended after {seconds:.1f} s, of which {TIMEOUT:g} s may pass")
                assert seconds < LONGEST
                stopper.wait(90)
                print(f"the command ended after {time.monotonic() - begun:.1f} s")
            assert stopper.returncode not in (0, None)
            assert "state.unreachable" in (lab.root / "stop.log").read_text()
    next_run_delivers(lab, **env)


def next_run_delivers(lab: Lab, **env: str) -> None:
    """All existing records, each once."""
    build(lab, trigger="available-now")
    with started(lab, *conduit("run", "--once"), **env) as process:
        process.wait(120)
        assert process.returncode == 0, (lab.root / "output.log").read_text()
    rows = [row for file in lab.root.glob("held.txt-*") for row in lab.documents(file.name)]
    assert sorted(row["payload"]["after"]["i"] for row in rows) == list(range(5))
