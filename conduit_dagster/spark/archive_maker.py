"""Builder of the class-data archive: a separate Spark server runs one small job and dumps its classes on exit.

Run as a module, by :func:`conduit_dagster.spark.class_data.make_archive_later`. About 20 seconds of CPU, 180 MB.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conduit_dagster.processes import is_up, started_at, try_lock
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.spark.class_data import archive_path, forget_unused, mark_failed
from conduit_dagster.spark.java import STAYS
from conduit_dagster.spark.server_files import ServerFiles, SparkServer
from conduit_dagster.spark.server_launch import launch_plan
from conduit_dagster.spark.server_monitor import loopback_channel
from conduit_dagster.spark.spark_settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

# the user's first run is busy until then, and a container may already have ended
_DELAY = 20.0
_START, _END = 300.0, 600.0


def main() -> None:
    """Make the archive unless it exists or another process is making it."""
    path = archive_path()
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    os.nice(19)
    with path.with_suffix(".lock").open("ab") as lock:
        if not try_lock(lock):
            return
        time.sleep(float(os.environ.get("CONDUIT_SPARK_ARCHIVE_DELAY") or _DELAY))
        if not path.exists() and not make_archive(path):
            mark_failed(path)
        forget_unused(path.parent)


def make_archive(path: Path) -> bool:
    """Make the archive in a temporary folder and rename it, so that no partial file is ever visible.

    Return whether the archive exists now.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as aside:
        draft = Path(aside) / path.name
        try:
            made = _recorded(Path(aside), draft) == 0 or draft.exists()
        except (ConduitError, OSError, subprocess.TimeoutExpired):
            return False
        if made and draft.is_file():
            draft.rename(path)
    return path.is_file()


def _recorded(aside: Path, draft: Path) -> int:
    """Run a job on a server that writes ``draft`` on exit; return the server's exit code."""
    files = ServerFiles(aside)
    files.make()
    plan = launch_plan(files, SparkSettings(conf={"spark.master": "local[1]"}), archive=False)
    with (aside / "log").open("wb") as log:
        process = subprocess.Popen(
            plan["command"], cwd=aside, env=recording_environment(plan["env"], draft),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _exercise(_up(process, plan["server"]))
        process.terminate()
        return process.wait(_END)
    finally:
        process.kill()
        process.wait()


def recording_environment(environment: Mapping[str, str], draft: Path) -> dict[str, str]:
    """Return the environment in which the server writes ``draft``, starts no warm process, and ends by SIGTERM.

    A warm process would stay for the user's next runs, at the low priority of this one; and a server that ignores what
    ends this process would stay for ever.
    """
    options = f"{environment['SPARK_SUBMIT_OPTS']} -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
    return {**environment, "SPARK_SUBMIT_OPTS": options, "CONDUIT_WARM_SECONDS": "0", STAYS: ""}


def _up(process: subprocess.Popen[bytes], about: dict[str, Any]) -> SparkServer:
    deadline = time.monotonic() + _START
    while not is_up(process.pid, about["port"]):
        if process.poll() is not None or time.monotonic() > deadline:
            raise OSError("the server did not come up")
        time.sleep(0.2)
    return SparkServer(process.pid, started_at(process.pid) or "", since=time.time(), **about)


def _exercise(server: SparkServer) -> None:
    """Run the Spark operations of a pipeline's first step."""
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    try:
        spark = SparkSession.builder.channelBuilder(loopback_channel(server)).create()
        _step(spark)
        spark.stop()
    except PySparkException as error:
        raise OSError(str(error)) from error


def _step(spark: SparkSession) -> None:
    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.range(100, numPartitions=2).mapInArrow(same, "id long").toArrow()
    spark.range(100).selectExpr("id % 7 AS k").groupBy("k").count().collect()


if __name__ == "__main__":
    main()
