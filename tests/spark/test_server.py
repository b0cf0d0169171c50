"""The shared server's life, with real servers and real clients: a client needs a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab.choice import in_matrix, some
from lab.file_rights import obeyed
from lab.jvm_options import archive_switch
from lab.server_process import free_port
from lab.waiting import wait_until

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark import server_launch
from conduit_dagster.spark.server import server_status, start_server, stop_server
from conduit_dagster.spark.server_files import ServerFiles, SparkServer
from conduit_dagster.spark.server_monitor import answered
from conduit_dagster.spark.spark_settings import SparkSettings

SECONDS = 120
pytestmark = pytest.mark.slow

# executes stdin, one line of Python at a time, and prints the results
_CLIENT = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from conduit_dagster.connectors.spark.driver_session import asked
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import ConnectorContext
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.spark.server_files import ServerFiles
from conduit_dagster.spark.session import SparkSettings, close_session, open_session, parallelism
from conduit_dagster.spark.sql.query import SqlQuery
from conduit_dagster.spark.sql.sql_session import sql_session

home = Path(sys.argv[1])

def same(number):
    return b"%d" % number

def nap(number):
    import time
    time.sleep(120)
    return b"%d" % number

def opened(**settings):
    global spark
    spark = open_session(SparkSettings("shared", home=home, **settings), "client")
    return ServerFiles(home).read().pid

def stage(task=same):
    return len(Jobs(spark, 'p').each(10, task))

def sql_stage():
    query = SqlQuery("q", ("bigint",), "", ("1",))
    return len(Jobs(spark, 'p').each(1, same, {"node": query}))

def read_by_a_connector():
    with asked(ConnectorContext("p", "in", ".", Clock(0)), "text", "be read") as (session, _):
        return session.range(3).count(), type(session).active() is session

def in_a_thread(action):
    # as each attempt of a pipeline runs, and each delivery
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()

def failure(action):
    try:
        return action()
    except ConduitError as error:
        return f"{error.code}: {error.message}"

print("ready", flush=True)
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except ConduitError as error:
        print(error.code, flush=True)
"""


class Client:
    """A process that can have a session on the server."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.heard() == "ready"

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def ask(self, line: str) -> str:
        self.say(line)
        return self.heard()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def read(home: Path) -> SparkServer:
    server = ServerFiles(home).read()
    assert server is not None
    return server


def _children(pid: int) -> list[int]:
    """Without zombies: Spark's launch script may leave one to the JVM that it becomes, which never asks for it."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(one) for one, parent, state in rows if int(parent) == pid and not state.startswith("Z")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a project whose server the tests share; each leaves one that can be used."""
    folder = tmp_path_factory.mktemp("project") / ".conduit"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONDUIT_SPARK_ARCHIVE", archive_switch())
        patch.setenv("CONDUIT_WORKER_DAEMON_SECONDS", "1")
        yield folder
        stop_server(folder)


@pytest.fixture
def client(home: Path) -> Iterator[Callable[[], Client]]:
    started: list[Client] = []

    def start() -> Client:
        started.append(Client(home))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_two_processes_that_start_it_at_once_share_one(home: Path, client: Callable[[], Client]) -> None:
    pair = [client(), client()]
    for one in pair:
        one.say("opened()")
    pids = {one.heard() for one in pair}
    assert pids == {str(read(home).pid)}
    assert [one.ask("stage()") for one in pair] == ["10", "10"]
    shown = server_status(home)
    assert shown["answers"]
    assert [one["name"] for one in shown["sessions"]] == ["client", "client"]
    assert shown["memory_bytes"] > 100_000_000
    assert pair[0].ask("close_session(spark)") == "None"
    assert len(server_status(home)["sessions"]) == 1
    # being killed, it can't report its end
    pair[1].kill()
    assert server_status(home)["sessions"] == []
    assert read(home).is_alive()


def test_its_token_is_for_its_user_alone(home: Path) -> None:
    server, _ = start_server(SparkSettings("shared", home=home))
    folder = ServerFiles(home).folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "server.json").stat().st_mode) == 0o600
    assert not (folder / "server.conf").exists()
    for pid in (server.pid, server.keeper):
        listed = subprocess.run(
            ["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True
        )
        assert server.token not in listed.stdout
    assert server.token not in json.dumps(server_status(home))
    assert answered(server, 60)
    assert answered(dataclasses.replace(server, token="another"), 60) is None


def test_no_proxy_is_asked_for_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server, _ = start_server(SparkSettings("shared", home=home))
    assert answered(server, 60)


def test_that_of_another_user_is_not_overlooked(tmp_path: Path) -> None:
    ServerFiles(tmp_path).make()
    (tmp_path / "spark").chmod(0)
    with obeyed(), pytest.raises(TransientError, match="no permission") as raised:
        server_status(tmp_path)
    assert raised.value.code == "file.no_permission"


def test_killed_it_is_said_at_once_and_replaced(home: Path, client: Callable[[], Client]) -> None:
    one = client()
    first = int(one.ask("opened()"))
    assert one.ask("stage()") == "10"
    one.say("stage(nap)")
    wait_until(lambda: bool(_children(first)), "a worker runs", SECONDS)
    os.kill(first, signal.SIGKILL)
    start = time.monotonic()
    assert one.heard() == "spark.session_lost"
    assert one.ask("stage()") == "spark.session_lost"
    assert time.monotonic() - start < 90  # the task naps for two minutes
    second = int(one.ask("opened()"))
    assert second != first
    assert one.ask("stage()") == "10"


def test_a_keeper_that_was_killed_is_replaced(home: Path, client: Callable[[], Client]) -> None:
    server, _ = start_server(SparkSettings("shared", home=home))
    os.kill(server.keeper, signal.SIGKILL)
    wait_until(lambda: not server.is_monitored(), "the keeper ends", SECONDS)
    assert client().ask("opened()") == str(server.pid)
    kept = read(home)
    assert kept.is_monitored()
    assert (kept.pid, kept.token) == (server.pid, server.token)


@in_matrix
def test_a_server_of_another_copy_of_the_package_is_replaced_once_nobody_uses_it(
    home: Path, client: Callable[[], Client]
) -> None:
    """As after an upgrade into another folder: its workers would import the older code."""
    one = client()
    pid = one.ask("opened()")
    ServerFiles(home).write(dataclasses.replace(read(home), package="/opt/older"))
    other = client()
    refused = other.ask("failure(opened)")
    assert "spark.server_differs" in refused
    assert "/opt/older" in refused
    one.kill()
    assert other.ask("opened()") != pid
    assert other.ask("stage()") == "10"


def test_a_stale_file_whose_pid_is_somebody_elses_is_passed_over(home: Path, tmp_path: Path) -> None:
    """The id of a dead server may belong to any process by now: it is neither used nor ended."""
    files = ServerFiles(tmp_path)
    files.make()
    with subprocess.Popen(["sleep", "600"]) as other:
        server = SparkServer(other.pid, "1", 1, "t", time.time(), "4.3.0", sys.executable, {})
        files.write(server)
        assert server_status(tmp_path) == {"running": False, "log": None}
        assert stop_server(tmp_path) is None
        assert other.poll() is None
        other.kill()
    assert files.read() is None


def test_stop_ends_it_under_an_open_session(home: Path, client: Callable[[], Client]) -> None:
    one = client()
    pid = int(one.ask("opened()"))
    one.say("stage(nap)")
    wait_until(lambda: bool(_children(pid)), "a worker runs", SECONDS)
    stopped = stop_server(home)
    assert stopped is not None
    assert stopped["pid"] == pid
    assert [session["name"] for session in stopped["sessions"]] == ["client"]
    assert one.heard() == "spark.session_lost"
    assert not server_status(home)["running"]
    assert stop_server(home) is None


def test_whoever_is_alone_on_a_server_of_another_configuration_gets_one_of_its_own(
    home: Path, client: Callable[[], Client]
) -> None:
    """Also: it ends when idle and never under a session, and a session outlives the parents of its workers."""
    plain, _ = start_server(SparkSettings("shared", home=home))
    one = client()
    pid = int(
        one.ask("opened(idle=2, conf={'spark.python.worker.reuse': 'false', 'spark.sql.shuffle.partitions': '7'})")
    )
    assert pid != plain.pid
    assert not plain.is_alive()
    server = read(home)
    assert one.ask("spark.conf.get('spark.sql.shuffle.partitions')") == "'7'"
    # while another client uses it, the server stays
    other = client()
    warned = other.ask("opened(conf={'spark.task.maxFailures': '5'})")
    assert "keys=['spark.task.maxFailures']" in warned
    assert other.heard() == str(pid)
    other.kill()
    # without a worker the parents end, and Spark starts others
    assert one.ask("stage()") == "10"
    wait_until(lambda: not _children(pid), "the parents of the workers end", SECONDS)
    assert server.is_alive(), "it ended under a session that was silent for longer than idle"
    assert one.ask("stage()") == "10"
    one.kill()
    wait_until(lambda: not server.is_alive(), "the idle server ends", SECONDS)
    wait_until(lambda: not server.is_monitored(), "its keeper ends", SECONDS)
    assert ServerFiles(home).read() is None


_ENDED = "the Spark server has ended the session"


@pytest.mark.parametrize("ended", some(["spark"], ["sql_session(spark)"]))
def test_a_session_that_expired_is_replaced(home: Path, client: Callable[[], Client], ended: str) -> None:
    """A released one: its server answers as for one that was not used for too long, without the wait."""
    one = client()
    pid = one.ask("opened()")
    assert one.ask("sql_stage()") == "1"
    assert one.ask(f"{ended}.client.release_session()") == "None"
    task = "stage()" if ended == "spark" else "sql_stage()"
    assert _ENDED in one.ask(f"failure(lambda: {task})")
    assert one.ask("opened()") == pid
    assert [one.ask("stage()"), one.ask("sql_stage()")] == ["10", "1"]


def test_a_session_that_expired_beside_its_sql_session_is_replaced(home: Path, client: Callable[[], Client]) -> None:
    one = client()
    pid = one.ask("opened()")
    assert one.ask("sql_stage()") == "1"
    for ended in ("spark", "sql_session(spark)"):
        assert one.ask(f"{ended}.client.release_session()") == "None"
    # the first failure is that of the SQL session, the second one that of the session that it is to be cloned from
    for _ in range(2):
        assert _ENDED in one.ask("failure(sql_stage)")
        assert one.ask("opened()") == pid
    assert one.ask("sql_stage()") == "1"


def test_a_connector_uses_the_session_on_a_new_server(home: Path, client: Callable[[], Client]) -> None:
    """The first session stays the one that PySpark knows in the thread that opened it."""
    one = client()
    first = int(one.ask("opened()"))
    assert one.ask("in_a_thread(read_by_a_connector)") == "(3, True)"
    os.kill(first, signal.SIGKILL)
    assert "spark.session_lost" in one.ask("failure(lambda: in_a_thread(read_by_a_connector))")
    assert int(one.ask("in_a_thread(opened)")) != first
    assert one.ask("in_a_thread(read_by_a_connector)") == "(3, True)"
    assert one.ask("read_by_a_connector()[0]") == "3"


def test_a_port_that_is_taken_after_it_was_chosen_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen seconds before the server binds it."""
    stop_server(home)
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [free_port(), other.getsockname()[1]]
        monkeypatch.setattr(server_launch, "free_port", ports.pop)
        server, is_new = start_server(SparkSettings("shared", home=home))
        assert (is_new, answered(server, SECONDS) is not None, ports) == (True, True, [])
    stop_server(home)
