"""How the shared server is started: its configuration, its environment, its command."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conduit_dagster.processes import free_port
from conduit_dagster.spark.archive import archive_options
from conduit_dagster.spark.java import java_environment
from conduit_dagster.spark.server_files import ServerFiles, write_private
from conduit_dagster.spark.settings import LOCAL, LOOPBACK, SparkSettings
from conduit_dagster.spark.spark_home import spark_home

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_LOG = Path(__file__).with_name("log4j2-server.properties")
_TOKEN = "spark.connect.authenticate.token"
_PORT = "spark.connect.grpc.binding.port"
# a client's own: they would turn the server into a client, or are another server's
_NOT_INHERITED = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_LOCAL_REMOTE",
    "SPARK_REMOTE",
)


def launch_plan(files: ServerFiles, settings: SparkSettings, archive: bool) -> dict[str, Any]:
    """What the keeper is told; writes the server's configuration, for its user alone."""
    conf = server_conf(settings)
    port, token = free_port(), secrets.token_urlsafe(24)
    own = {"spark.connect.grpc.binding.address": LOOPBACK, _PORT: str(port), _TOKEN: token}
    write_private(files.conf, "".join(_line(key, value) for key, value in {**conf, **own}.items()))
    return {
        "command": _command(files.conf),
        "env": server_environment(settings, archive),
        "server": {"port": port, "token": token, "conf": digests(conf), **runtime()},
    }


def runtime() -> dict[str, str]:
    """What client and server must have in common."""
    import pyspark

    return {"spark": pyspark.__version__, "python": sys.executable}


def server_conf(settings: SparkSettings) -> dict[str, str]:
    """The configuration that the server starts with, but for where it listens."""
    own = {
        "spark.master": LOCAL,
        "spark.app.name": "conduit-dagster",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": "2g",
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": "conduit_dagster.spark.daemon_stub",
        "spark.python.unix.domain.socket.enabled": "true",
        # one job at a time per pipeline, the oldest first: nobody waits for more than one step of each other one.
        # FAIR settles ties by name, where TaskSet_1000 is before TaskSet_999: that one waits as long as Spark is busy
        "spark.scheduler.mode": "FIFO",
        "spark.ui.enabled": "false",
        # a quiet pipeline says nothing for days; a killed client's session must go some time
        "spark.connect.session.manager.defaultSessionTimeout": "7d",
        # kept for a UI that nobody sees
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.connect.ui.retainedSessions": "50",
        "spark.sql.connect.ui.retainedStatements": "50",
    }
    return {**own, **settings.conf}


def digests(conf: Mapping[str, str]) -> dict[str, str]:
    """What two configurations are compared by: a value may be a secret."""
    return {key: hashlib.sha256(f"{key}={value}".encode()).hexdigest()[:16] for key, value in conf.items()}


def server_environment(settings: SparkSettings, archive: bool) -> dict[str, str]:
    """The whole environment of the server, and so of its workers: that of the process that starts it, mostly."""
    python = settings.conf.get("spark.pyspark.python") or sys.executable
    options = [f"-Dlog4j2.configurationFile={_LOG.as_uri()}", "-XX:+ExitOnOutOfMemoryError"]
    if archive:
        options += archive_options(settings.conf)
    own = {
        "PYSPARK_PYTHON": python,
        "PYTHONPATH": package_path(),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_SUBMIT_OPTS": " ".join([*options, os.environ.get("SPARK_SUBMIT_OPTS", "")]).strip(),
    }
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    return {**inherited, **java_environment(), **own}


def package_path() -> str:
    """Where this package is found by a process in another folder."""
    root = str(Path(__file__).resolve().parents[2])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([*[part for part in given if part != root], root])


def _command(conf: Path) -> list[str]:
    # values of the configuration must not show in the list of processes
    options = ["--load-spark-defaults", "--properties-file", str(conf)]
    return [str(spark_home() / "bin" / "spark-submit"), *options, "--class", _CLASS, "spark-internal"]


def _line(key: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return f"{key}={escaped}\n"
