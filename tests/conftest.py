"""Fixtures that more than one folder of tests needs: a Spark session, a Spark Connect server."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from lab.jvm_options import SHORT_LIVED
from lab.kills import crashing
from lab.one_revision_map import share_revisions
from lab.one_statement_cache import share_statements
from lab.postgres_server import PostgresServer, installations
from lab.run_order import sort_files
from lab.scratch import keep_in_memory
from lab.server_process import free_port
from lab.support import Crashes, Lab
from lab.waiting import wait_until

from conduit_dagster.processes import is_up
from conduit_dagster.secret_values import forget
from conduit_dagster.spark.class_data import archive_options
from conduit_dagster.spark.java import java_environment
from conduit_dagster.spark.session import SparkSettings, close_session, open_session

if TYPE_CHECKING:
    from lab.kafka_server import KafkaServer
    from pyspark.sql import SparkSession


def pytest_configure() -> None:
    """For this process and all that it starts."""
    # a background shell ignores SIGINT, and Dagster then makes SIGTERM the same: processes under test would not end
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["SPARK_SUBMIT_OPTS"] = SHORT_LIVED
    keep_in_memory()
    share_statements()
    share_revisions()
    # a busy machine must not fail the test
    settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("ours")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collection makes lives to the end: the garbage collector took a tenth of the time to look at it again."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For every worker alike."""
    sort_files(items)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session with two tasks at a time for the whole test run."""
    session = open_session(SparkSettings(url="local[2]"), "tests")
    yield session
    close_session(session)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL on loopback for the whole test run; ask it for a database of your own."""
    found = installations()
    if not found:
        pytest.skip("no PostgreSQL: install Debian's postgresql, or pgserver (Python 3.12 or older)")
    server = PostgresServer(found[0])
    yield server
    server.close()


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A Kafka broker on loopback for the whole test run; ask it for a topic of your own."""
    from lab.kafka_server import running_kafka

    with running_kafka() as server:
        yield server


@pytest.fixture(autouse=True)
def no_known_secrets() -> Iterator[None]:
    """A password in one test's settings is an ordinary word in another test."""
    forget()
    yield
    forget()


@pytest.fixture(autouse=True)
def own_log_settings() -> Iterator[None]:
    """A command that a test runs in this process configures logging; the next test has the defaults."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A socket's path has at most 107 bytes; that of a test's own folder may be longer."""
    with tempfile.TemporaryDirectory(prefix="conduit-") as folder:
        yield Path(folder)


@pytest.fixture
def crashes() -> Crashes:
    """Run a lab's pipeline until it crashes at the named point, or at its n-th passage: ``after-plan:2``."""

    def run(lab: Lab, at: str) -> None:
        point, _, passage = at.partition(":")
        with crashing(point, int(passage or 1)):
            lab.run()

    return run


_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # a name


@dataclass(frozen=True)
class ConnectServer:
    """A running Spark Connect server: its URL, and the environment that a client process needs."""

    url: str
    env: dict[str, str]

    @property
    def settings(self) -> dict[str, str]:
        """What a command needs in its environment to run pipelines on it."""
        return {"CONDUIT_SPARK_URL": self.url, _TOKEN: self.env[_TOKEN]}

    def start(self, script: Path, *words: object, **more: Any) -> subprocess.Popen[Any]:
        """Start a script of the tests as a process of its own, with these arguments; ``more`` is for Popen."""
        tests = Path(__file__).parent
        # this checkout's package, as for the server; another one may be installed
        env = {**self.env, "PYTHONPATH": os.pathsep.join(map(str, (tests, tests.parent)))}
        command = [sys.executable, "-X", "faulthandler", str(script), *map(str, words)]
        return subprocess.Popen(command, env=env, **more)


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A Spark Connect server on loopback with a token. Mark tests that ask for it ``slow``."""
    folder = tmp_path_factory.mktemp("connect")
    port, token = free_port(), secrets.token_urlsafe(16)
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(_command(port, token), cwd=folder, env=_server_env(), stdout=output, stderr=output)
    try:
        wait_until(
            lambda: is_up(server.pid, port),
            "the Spark Connect server takes connections",
            240,
            over=lambda: server.poll() is not None,
            said=lambda: log.read_text()[-3000:],
        )
        env = {**os.environ, _TOKEN: token}
        # with 127.0.0.1 in it a token makes the client insist on TLS
        yield ConnectServer(f"sc://localhost:{port}", env)
    finally:
        server.terminate()
        server.wait(120)


@pytest.fixture
def connected(connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that the test starts use the tests' Connect server, which saves a start of Spark. Mark it ``slow``."""
    for name, value in connect_server.settings.items():
        monkeypatch.setenv(name, value)


def _command(port: int, token: str) -> list[str]:
    import pyspark

    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
        "spark.driver.host": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    pairs = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    return [str(submit), "--master", "local[2]", *pairs, *server]


def _server_env() -> dict[str, str]:
    # the server runs in another folder, where a package that is not installed could not be imported
    root = str(Path(__file__).parent.parent)
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": root}
    own["SPARK_SUBMIT_OPTS"] = " ".join([*archive_options({}), SHORT_LIVED])
    return {**os.environ, **java_environment(), **own}
