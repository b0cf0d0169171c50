"""The shared server on a disk that is full or can't be written: one clear error, and no server that is left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from lab.jvm_options import archive_switch
from lab.small_disk import fill, mounted

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.server import start_server, stop_server
from conduit_dagster.spark.server_files import ServerFiles
from conduit_dagster.spark.spark_settings import SparkSettings

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home on a disk of its own."""
    monkeypatch.setenv("CONDUIT_SPARK_ARCHIVE", archive_switch())
    with mounted(tmp_path / "home", "1m") as disk:
        ServerFiles(disk).make()
        yield disk
        stop_server(disk)


def _servers(home: Path) -> list[int]:
    """Return the processes of servers that were started for this home."""
    conf = str(ServerFiles(home).conf)
    return [one.pid for one in psutil.process_iter(["cmdline"]) if conf in (one.info["cmdline"] or [])]


@pytest.mark.parametrize(
    ("pages", "place"),
    [
        pytest.param(0, "server.conf", id="for_nothing"),
        pytest.param(1, "server.json", id="for_the_configuration_alone"),
    ],
)
def test_a_full_disk_is_said_and_leaves_no_server(home: Path, pages: int, place: str) -> None:
    ballast = fill(home, leave=pages * os.sysconf("SC_PAGE_SIZE"))
    with pytest.raises(TransientError) as raised:
        start_server(SparkSettings("shared", home=home))
    assert (raised.value.code, Path(raised.value.place or "").name) == ("file.disk_full", place)
    assert _servers(home) == []
    ballast.unlink()
    server, is_new = start_server(SparkSettings("shared", home=home))
    assert (is_new, server.is_monitored(), _servers(home)) == (True, True, [server.pid])


def test_a_session_that_cannot_be_marked_is_said(home: Path) -> None:
    start_server(SparkSettings("shared", home=home))
    fill(home, leave=0)
    with pytest.raises(TransientError) as raised:
        start_server(SparkSettings("shared", home=home))
    assert raised.value.code == "file.disk_full"
    assert ServerFiles(home).sessions() == []


def test_a_folder_that_spark_cannot_write_is_said(home: Path) -> None:
    """Spark ends without an exception then."""
    with pytest.raises(TransientError, match="Failed to create any local dir") as raised:
        start_server(SparkSettings("shared", {"spark.local.dir": "/proc/nowhere"}, home=home))
    assert raised.value.code == "spark.server_failed"
