"""Sessions that their Spark Connect server has ended: not used for too long, or restarted."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from conduit_dagster.spark.connect import has_expired

if TYPE_CHECKING:
    from conftest import ConnectServer


def _run(script: str, server: ConnectServer) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, server.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=server.env)


_EXPIRED = """
import sys
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.session import SparkSettings, close_session, open_session
from conduit_dagster.spark.sql.sql_session import sql_session

def attempt(of):
    spark = open_session(SparkSettings(sys.argv[1]), "child")
    session = of(spark)
    try:
        print(Jobs(spark, "p").run(lambda: session.range(3).count(), session))
    except TransientError as error:
        print(error.code)
    return session

for of in (sql_session, lambda spark: spark):
    attempt(of).client.release_session()
    if of is sql_session:
        attempt(of)
    attempt(of)
close_session(open_session(SparkSettings(sys.argv[1]), "child"))
"""


@pytest.mark.slow
def test_a_session_that_expired_at_a_connect_server_is_replaced(connect_server: ConnectServer) -> None:
    """A released one: its server answers as for one that was not used for too long. Opening a session checks it."""
    done = _run(_EXPIRED, connect_server)
    assert done.stdout.split() == ["3", "spark.session_lost", "3", "3", "3"], done.stderr


_RESTARTED = """
import sys
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.session import SparkSettings, close_session, open_session

for _ in range(2):
    spark = open_session(SparkSettings(sys.argv[1]), "child")
    print(Jobs(spark, "p").run(spark.range(3).count))
    # a server that was restarted has another one: what a thread is told of it, closes the client for the others
    spark.client._server_session_id = "00000000-0000-0000-0000-000000000000"
    for _ in range(2):
        try:
            Jobs(spark, "p").run(spark.range(3).count)
        except TransientError as error:
            print(error.code)
close_session(open_session(SparkSettings(sys.argv[1]), "child"))
"""


@pytest.mark.slow
def test_a_connect_server_that_was_restarted_is_told_as_such(connect_server: ConnectServer) -> None:
    """It was `spark.job_failed`, then `spark.unreachable`: No active Spark session found. Please create a new one."""
    done = _run(_RESTARTED, connect_server)
    assert done.stdout.split() == ["3", "spark.session_lost", "spark.session_lost"] * 2, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed.",
        "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND on the server but responses were received",
    ],
)
def test_what_a_server_says_of_a_session_that_it_does_not_know(text: str) -> None:
    """The second one, of a server that was restarted in the middle of a step, was `spark.job_failed`."""
    assert has_expired(Exception(text))
    assert not has_expired(Exception("[INVALID_HANDLE.FORMAT] Handle must be an UUID string"))
