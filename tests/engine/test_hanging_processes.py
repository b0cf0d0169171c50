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

import pytest
from hanging_plugin import COUNTING, HANGING, HOLDING
from postgres_server import PostgresServer, installations
from support import Lab, queue
from waiting import wait_until

from conduit_dagster.state.overview import pipeline_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TIMEOUT = 3.0
LONGEST = TIMEOUT + 8
"""Two seconds more than the timeout on a machine of its own; beside other tests an interpreter alone takes several to
end. What hangs would hang for ten minutes."""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "hanging.py").write_text(HANGING)
    build(lab)
    return lab


def build(lab: Lab, **more: Any) -> None:
    delivery = {"strategy": "exactly-once", "shutdown-timeout": f"{TIMEOUT}s"}
    lab.pipeline(
        connectors=[COUNTING, HOLDING],
        delivery=delivery,
        **{"dead-letter-queue": queue(), "trigger": "continuous", **more},
    )


@contextmanager
def started(lab: Lab, *words: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    own = {"PYTHONPATH": str(ROOT), "CONDUIT_SPARK_URL": "local[1]", "CONDUIT_WARM_SECONDS": "0", **env}
    with (lab.root / "output.log").open("wb") as log:
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


def wait_until_it_hangs(lab: Lab, process: subprocess.Popen[bytes]) -> None:
    wait_until(
        lambda: (lab.root / "hangs").exists(),
        "it hangs",
        120,
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


@pytest.mark.parametrize("point", ["publish", "latest", "ack", "check"])
def test_run_ends_at_a_signal(lab: Lab, point: str) -> None:
    (lab.root / f"hang-{point}").touch()
    with started(lab, *conduit("run")) as process:
        wait_until_it_hangs(lab, process)
        assert seconds_to_end(process, signal.SIGTERM) < LONGEST
        assert process.returncode == 0
    assert "still in hang in" in (lab.root / "output.log").read_text()
    with lab.store() as database:
        assert pipeline_rows(database)["p"]["status"] == "stopped"


def test_pipelines_stop_ends_it(lab: Lab) -> None:
    (lab.root / "hang-publish").touch()
    with started(lab, *conduit("run")) as process:
        wait_until_it_hangs(lab, process)
        begun = time.monotonic()
        with started(lab, *conduit("pipelines", "stop", "p")) as stopper:
            stopper.wait(60)
            assert stopper.returncode == 0, (lab.root / "output.log").read_text()
        # the command itself takes a second to start, and looks twice a second
        seconds = time.monotonic() - begun
        print(f"stopped after {seconds:.1f} s, of which {TIMEOUT:g} s may pass")
        assert seconds < LONGEST + 2
        process.wait(20)
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_in_dagster_ends(lab: Lab, number: int) -> None:
    (lab.root / "hang-publish").touch()
    home = lab.root / "dagster"
    home.mkdir()
    (home / "dagster.yaml").touch()
    words = (str(BIN / "dagster"), "job", "execute", "-m", "conduit_dagster.definitions", "-j", "p")
    with started(lab, *words, DAGSTER_HOME=str(home)) as process:
        wait_until_it_hangs(lab, process)
        assert seconds_to_end(process, number) < LONGEST, (lab.root / "output.log").read_text()[-3000:]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    found = installations()
    if not found:
        pytest.skip("no PostgreSQL: install Debian's postgresql, or pgserver (Python 3.12 or older)")
    server = PostgresServer(found[0])
    try:
        yield server
    finally:
        for pid in processes_of(server):
            os.kill(pid, signal.SIGCONT)
        server.close()


def processes_of(server: PostgresServer) -> list[int]:
    """The server's and those of its connections."""
    found = [server.pid]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[1]) == server.pid:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("dagster", [False, True])
def test_a_state_store_that_is_frozen(lab: Lab, server: PostgresServer, dagster: bool) -> None:
    """Nothing of the stop can be recorded: the next run finds a dead owner, as after a kill."""
    (lab.root / "hang-publish").touch()
    home = lab.root / "dagster"
    home.mkdir()
    (home / "dagster.yaml").touch()
    words = (str(BIN / "dagster"), "job", "execute", "-m", "conduit_dagster.definitions", "-j", "p")
    env = {"CONDUIT_STATE_URL": server.create_database(), "DAGSTER_HOME": str(home)}
    with started(lab, *(words if dagster else conduit("run")), **env) as process:
        wait_until_it_hangs(lab, process)
        for pid in processes_of(server):
            os.kill(pid, signal.SIGSTOP)
        (lab.root / "hang-publish").unlink()
        assert seconds_to_end(process, signal.SIGTERM) < LONGEST, (lab.root / "output.log").read_text()[-3000:]
        for pid in processes_of(server):
            os.kill(pid, signal.SIGCONT)
    build(lab, trigger="available-now")
    with started(lab, *conduit("run", "--once"), **env) as process:
        process.wait(120)
        assert process.returncode == 0, (lab.root / "output.log").read_text()
    rows = [row for file in lab.root.glob("held.txt-*") for row in lab.documents(file.name)]
    assert sorted(row["payload"]["after"]["i"] for row in rows) == list(range(5))
