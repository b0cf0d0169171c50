"""What an opened session is like: quiet, with our Python in its workers, and the caller's Ctrl-C intact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from lab.choice import in_matrix
from lab.jvm_options import SHORT_LIVED

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.spark.session import SparkSettings, is_connect, open_session, parallelism
from conduit_dagster.spark.spark_settings import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import ConnectServer


def test_workers_run_this_python(spark: SparkSession) -> None:
    def python_of_worker(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = spark.range(1).mapInArrow(python_of_worker, "python string").collect()
    assert {row.python for row in rows} == {sys.executable}


def test_a_local_session_counts_its_slots(spark: SparkSession) -> None:
    assert not is_connect(spark)
    assert parallelism(spark) == 2


def test_our_settings_reach_spark(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(os.cpu_count())
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    assert os.environ["SPARK_SUBMIT_OPTS"] == SHORT_LIVED
    assert "PYSPARK_PYTHON" not in os.environ


def test_threads_that_open_the_session_at_once_leave_the_environment_as_it_was(spark: SparkSession) -> None:
    """As the pipelines of one command do; a change left behind would reach every process started later."""
    before = dict(os.environ)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            with ThreadPoolExecutor(4) as threads:
                opened = list(threads.map(lambda _: open_session(SparkSettings(url="local[2]"), "again"), range(4)))
            assert set(opened) == {spark}
            assert dict(os.environ) == before
    finally:
        sys.setswitchinterval(usual)
        os.environ.update(before)


def test_the_session_of_a_process_is_handed_out_again(spark: SparkSession) -> None:
    assert open_session(SparkSettings(url="local[2]"), "again") is spark


def test_the_callers_interrupt_handler_stays(spark: SparkSession) -> None:
    def mine(number: int, frame: FrameType | None) -> None: ...

    before = signal.signal(signal.SIGINT, mine)
    try:
        open_session(SparkSettings(url="local[2]"), "again")
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


_NEW_SESSION = """
import signal, sys
from conduit_dagster.spark.session import SparkSettings, close_session, open_session, parallelism
signal.signal(signal.SIGINT, handler := lambda *_: None)
settings = SparkSettings("local[1]", {"spark.sql.adaptive.enabled": "true"}, 3, verbose="verbose" in sys.argv)
spark = open_session(settings, "child")
assert signal.getsignal(signal.SIGINT) is handler
assert parallelism(spark) == spark.range(9).rdd.getNumPartitions() == 3
assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
def fail(batches):
    raise ValueError("no such thing")
try:
    spark.range(1).mapInArrow(fail, "id long").collect()
except Exception as error:
    print(type(error).__name__)
try:
    spark.sql("SELECT nosuch")
except Exception as error:
    print(type(error).__name__)
close_session(spark)
close_session(spark)
"""


def _run(script: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)


def test_another_spark_in_spark_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import __version__

    own = spark_home()
    monkeypatch.setenv("SPARK_HOME", str(own))
    assert spark_home() == own
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    for jar, found in (("some-lib.jar", "no Spark"), ("spark-core_2.12-3.5.1.jar", "Spark 3.5.1")):
        (tmp_path / "jars").mkdir(exist_ok=True)
        (tmp_path / "jars" / jar).touch()
        with pytest.raises(FatalError) as raised:
            spark_home()
        assert raised.value.code == "environment.spark_home"
        assert raised.value.message == f"SPARK_HOME={tmp_path} is {found}, and PySpark here is {__version__}"


@pytest.mark.slow
def test_a_new_session_is_silent_even_when_a_task_or_a_query_fails(tmp_path: Path) -> None:
    """Nothing on stderr: no log4j remark, no WARN, no Java stack trace, no incubator module.

    Although the environment is that of a machine from which others use a cluster.
    """
    (tmp_path / "spark-defaults.conf").write_text("spark.master yarn\nspark.submit.deployMode cluster\n")
    remote = {"SPARK_REMOTE": "sc://nowhere:15002", "SPARK_API_MODE": "connect", "SPARK_CONF_DIR": str(tmp_path)}
    done = _run(_NEW_SESSION, env={**os.environ, **remote})
    assert (done.returncode, done.stdout, done.stderr) == (0, "PythonException\nAnalysisException\n", "")


@pytest.mark.slow
def test_verbose_shows_sparks_own_log() -> None:
    done = _run(_NEW_SESSION, "verbose")
    assert done.returncode == 0, done.stderr
    assert "ERROR" in done.stderr
    assert "\tat org.apache.spark" in done.stderr


_CONNECT = """
import sys, threading, time
from pathlib import Path
import pyarrow as pa
from conduit_dagster.spark import session
from conduit_dagster.spark.jobs import JobCancelled, cancel_job, run_job
from conduit_dagster.spark.session import SparkSettings, close_session, is_connect, open_session, parallelism
from conduit_dagster.recovery.errors import FatalError, TransientError

spark = open_session(SparkSettings(sys.argv[1], parallelism=int(sys.argv[2]) or None), "child")
print("connect", is_connect(spark))
print("parallelism", parallelism(spark))
print("planned as occupied", session._planned_slots(spark) == session._occupied_slots(spark))
print("adaptive", spark.conf.get("spark.sql.adaptive.enabled"))

def double(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"id": [2 * n for n in batch["id"].to_pylist()]})
table = run_job(spark, "sum", lambda: spark.range(1000).mapInArrow(double, "id long").toArrow())
print("sum", sum(table["id"].to_pylist()))

def fail(batches):
    raise ValueError("no such thing")
def degrade(batches):
    raise FatalError("the key is wrong")
for task in fail, degrade:
    try:
        run_job(spark, "fail", lambda: spark.range(1).mapInArrow(task, "id long").toArrow())
    except (FatalError, TransientError) as error:
        print(type(error).__name__, error.code, error)

started = Path(sys.argv[3])
def sleep(batches):
    started.touch()
    time.sleep(120)
    yield from batches
asked = []
def cancel():
    while not started.exists():
        time.sleep(0.02)
    asked.append(time.monotonic())
    cancel_job(spark, "nap")
canceller = threading.Thread(target=cancel, daemon=True)
canceller.start()
try:
    run_job(spark, "nap", lambda: spark.range(1).mapInArrow(sleep, "id long").toArrow())
except JobCancelled:
    print("cancelled", time.monotonic() - asked[0] < 60)
canceller.join()  # its last question would fail without the session
close_session(spark)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "got"), [(0, 2), (3, 3)])
def test_a_connect_server_runs_jobs(connect_server: ConnectServer, tmp_path: Path, asked: int, got: int) -> None:
    """In a process of its own: one that has a classic session cannot also be a client."""
    done = _run(_CONNECT, connect_server.url, str(asked), str(tmp_path / "started"), env=connect_server.env)
    assert done.stdout.splitlines() == [
        "connect True",
        f"parallelism {got}",
        "planned as occupied True",
        "adaptive false",
        "sum 999000",
        "TransientError spark.job_failed ValueError: no such thing",
        "FatalError pipeline.error the key is wrong",
        "cancelled True",
    ], done.stderr
    assert done.stderr == ""


_REFUSED = """
import sys
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.session import SparkSettings, open_session
try:
    open_session(SparkSettings(sys.argv[1]), "child")
except TransientError as error:
    print(error.code, error, error.fix, sep="\\n")
"""


@pytest.mark.slow
def test_a_connect_server_refuses_a_client_without_its_token(connect_server: ConnectServer) -> None:
    env = {key: value for key, value in connect_server.env.items() if "TOKEN" not in key}
    done = _run(_REFUSED, connect_server.url, env=env)
    code, message, _ = done.stdout.splitlines()
    assert code == "spark.unreachable"
    assert message.startswith(f"the Spark Connect server {connect_server.url} did not take the session: ")
    assert "<_" not in message


@pytest.mark.slow
def test_a_connect_server_that_is_not_there_is_given_up_soon() -> None:
    """And a token in the URL is not repeated, nor is it taken for the project's own server."""
    start = time.monotonic()
    done = _run(_REFUSED, "sc://localhost:1/;use_ssl=false;x=secret")
    assert time.monotonic() - start < 150  # PySpark itself would try for ten minutes
    assert "Connection refused" in done.stdout, done.stderr
    assert "secret" not in done.stdout
    assert "check spark.url" in done.stdout.splitlines()[-1]
    assert "RETRIES_EXCEEDED" not in done.stderr


_TOLD = """
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.jobs import run_job
from conduit_dagster.spark.session import SparkSettings, close_session, open_session

def told(work):
    try:
        work()
    except TransientError as error:
        print(error.code, flush=True)
        return error
"""
"""Beginning of a script: what it needs of ours, and what a failure is told as."""

_AWAY = """
import sys
from conduit_dagster.connectors.spark.driver_session import current_session, has_session
from conduit_dagster.spark import connect
from pyspark.sql import SparkSession

connect.TRIES = 1
used = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
connect._be_patient(used, 1)
told(lambda: open_session(SparkSettings(sys.argv[1]), "child"))
told(lambda: run_job(used, "p", lambda: used.range(3).toArrow()))
told(current_session)
print(has_session())
"""


def test_who_finds_a_connect_server_away_closes_the_session_of_nobody_else() -> None:
    """A closed one raises plain errors in the pipelines that use it: neither transient nor understood."""
    done = _run(_TOLD + _AWAY, "sc://localhost:1/;use_ssl=false")
    lost = ["spark.session_lost"] * 2
    assert done.stdout.splitlines() == ["spark.unreachable", *lost, "False"], done.stderr


_JVM_KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from pyspark import SparkContext
spark = open_session(SparkSettings("local[1]"), "child")
started = Path(sys.argv[1])
def sleep(batches):
    started.touch()
    time.sleep(60)
    yield from batches
def kill():
    while not started.exists():
        time.sleep(0.02)
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
threading.Thread(target=kill, daemon=True).start()
for _ in range(2):
    told(lambda: run_job(spark, "nap", lambda: spark.range(1).mapInArrow(sleep, "id long").collect()))
close_session(spark)
spark = open_session(SparkSettings("local[1]"), "child")
print(spark.range(3).count())
gateway = SparkContext._gateway
try:
    gateway.new_array(gateway.jvm.long, 2**31 - 10)
except Exception:
    pass
told(lambda: run_job(spark, "next", lambda: spark.range(3).count()))
print(open_session(SparkSettings("local[1]"), "child").range(3).count())
"""


@pytest.mark.slow
def test_a_killed_jvm_is_said_and_replaced(tmp_path: Path) -> None:
    """And one without memory ends: it may have lost any of its threads, and would answer some calls all the same."""
    done = _run(_TOLD + _JVM_KILLED, str(tmp_path / "started"))
    said = [line for line in done.stdout.splitlines() if "OutOfMemoryError" not in line]  # by the JVM
    killed, exhausted = ["spark.session_lost", "spark.session_lost", "3"], ["spark.session_lost", "3"]
    assert said == killed + exhausted, done.stderr


_NO_MASTER = """
missing = SparkSettings("spark://127.0.0.1:1", {"spark.driver.host": "127.0.0.1"})
print(told(lambda: open_session(missing, "child")))
spark = open_session(SparkSettings("local[1]"), "child")
print(spark.range(3).count())
spark.sparkContext._jsc.sc().stop()
told(lambda: run_job(spark, "next", lambda: spark.range(3).count()))
print(open_session(SparkSettings("local[1]"), "child").range(3).count())
"""


@pytest.mark.slow
@in_matrix
def test_a_session_that_its_cluster_does_not_take_or_ends_is_said_and_replaced() -> None:
    """A master that is not there, after a minute; and Spark stops a context whose application a master has ended."""
    done = _run(_TOLD + _NO_MASTER)
    missing = [
        "spark.unreachable",
        "the cluster manager spark://127.0.0.1:1 does not answer, or refuses the application",
    ]
    assert done.stdout.splitlines() == [*missing, "3", "spark.session_lost", "3"], done.stderr
