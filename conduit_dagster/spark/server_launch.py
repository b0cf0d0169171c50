"""Launch plan of the shared server: its configuration, environment and command."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conduit_dagster.processes import free_port
from conduit_dagster.spark.class_data import archive_options
from conduit_dagster.spark.java import STAYS, java_environment
from conduit_dagster.spark.server_files import ServerFiles, write_private
from conduit_dagster.spark.spark_settings import LOCAL, LOOPBACK, SparkSettings, jvm_options, redaction_conf, spark_home

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_LOG = Path(__file__).with_name("log4j2-server.properties")
_TOKEN = "spark.connect.authenticate.token"
_PORT = "spark.connect.grpc.binding.port"
# meant for a client: they would turn the server into a client, or belong to another server
_NOT_INHERITED = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_LOCAL_REMOTE",
    "SPARK_REMOTE",
)


def launch_plan(files: ServerFiles, settings: SparkSettings, archive: bool) -> dict[str, Any]:
    """Return the monitor's plan; write the server's configuration, readable by its user only."""
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
    """Return what client and server must share: version of Spark, Python executable, folder of this package."""
    import pyspark

    return {"spark": pyspark.__version__, "python": sys.executable, "package": _package_folder()}


def server_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the configuration that the server starts with, except for address, port and token."""
    own = {
        "spark.master": LOCAL,
        "spark.app.name": "conduit-dagster",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": "2g",
        # not what a cluster's spark-defaults.conf says
        "spark.submit.deployMode": "client",
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": "conduit_dagster.spark.daemon_stub",
        "spark.python.unix.domain.socket.enabled": "true",
        # one job at a time per pipeline, the oldest first: a pipeline waits for at most one step of each other one.
        # FAIR breaks ties by name, where TaskSet_1000 precedes TaskSet_999, which then waits as long as Spark is busy
        "spark.scheduler.mode": "FIFO",
        "spark.ui.enabled": "false",
        # a quiet pipeline may send nothing for days; a killed client's session must expire eventually
        "spark.connect.session.manager.defaultSessionTimeout": "7d",
        # kept for the UI, which is off
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.connect.ui.retainedSessions": "50",
        "spark.sql.connect.ui.retainedStatements": "50",
    }
    return {**own, **settings.conf, **redaction_conf(settings.conf)}


def digests(conf: Mapping[str, str]) -> dict[str, str]:
    """Return digests of the entries, for comparing configurations: a value may be a secret."""
    return {key: hashlib.sha256(f"{key}={value}".encode()).hexdigest()[:16] for key, value in conf.items()}


def server_environment(settings: SparkSettings, archive: bool) -> dict[str, str]:
    """Return the complete environment of the server and its workers: mostly that of the process that starts it."""
    python = settings.conf.get("spark.pyspark.python") or sys.executable
    options = [f"-Dlog4j2.configurationFile={_LOG.as_uri()}", *jvm_options()]
    if archive:
        options += archive_options(settings.conf)
    own = {
        "PYSPARK_PYTHON": python,
        "PYTHONPATH": package_path(),
        "SPARK_LOCAL_IP": LOOPBACK,
        STAYS: "1",
        "SPARK_SUBMIT_OPTS": " ".join([*options, os.environ.get("SPARK_SUBMIT_OPTS", "")]).strip(),
    }
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    return {**inherited, **java_environment(), **own}


def package_path() -> str:
    """Return the ``PYTHONPATH`` with which a process in another folder finds this package."""
    root = _package_folder()
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([*[part for part in given if part != root], root])


def _package_folder() -> str:
    return str(Path(__file__).resolve().parents[2])


def _command(conf: Path) -> list[str]:
    # values of the configuration must not appear in the process list
    options = ["--load-spark-defaults", "--properties-file", str(conf)]
    return [str(spark_home() / "bin" / "spark-submit"), *options, "--class", _CLASS, "spark-internal"]


def _line(key: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return f"{key}={escaped}\n"
