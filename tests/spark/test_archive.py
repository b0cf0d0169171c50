"""The class-data archive: identified by its inputs, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from lab.choice import some
from lab.small_disk import mounted

from conduit_dagster.spark import class_data
from conduit_dagster.spark.archive_maker import recording_environment
from conduit_dagster.spark.java import STAYS, require_java
from conduit_dagster.spark.server_files import ServerFiles
from conduit_dagster.spark.server_launch import launch_plan
from conduit_dagster.spark.spark_settings import SparkSettings
from conduit_dagster.warm.client import NotWarmError, spawn
from conduit_dagster.warm.protocol import ForkRequest

_START = """
from conduit_dagster.spark.session import SparkSettings, open_session
print(open_session(SparkSettings("local[1]"), "archive").range(3).count())
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache, in which an archive failed recently: none is made in the background."""
    monkeypatch.delenv("CONDUIT_SPARK_ARCHIVE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = class_data.archive_path()
    if path is None:
        pytest.skip("this Java takes no archive")
    assert path.is_relative_to(tmp_path)
    path.parent.mkdir(parents=True)
    class_data.mark_failed(path)
    return path


def test_there_are_no_options_without_an_archive(cache: Path) -> None:
    assert class_data.archive_options({}) == []
    cache.touch()
    assert f"-XX:SharedArchiveFile={cache}" in class_data.archive_options({})
    assert class_data.archive_options({"spark.driver.extraClassPath": "x"}) == []


def test_it_can_be_switched_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.touch()
    monkeypatch.setenv("CONDUIT_SPARK_ARCHIVE", "off")
    assert class_data.archive_options({}) == []


def test_one_that_is_not_trusted_is_gone_and_not_made_again_today(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.touch()
    assert class_data.distrust_archive()
    assert not class_data.distrust_archive()
    assert not cache.exists()
    monkeypatch.setattr(class_data.subprocess, "Popen", lambda *_, **__: pytest.fail("made again"))
    class_data.make_archive_later()


def test_one_in_a_read_only_image_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted(tmp_path / "image", "1m") as image:
        monkeypatch.delenv("CONDUIT_SPARK_ARCHIVE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(image))
        path = class_data.archive_path()
        if path is None:
            pytest.skip("this Java takes no archive")
        path.parent.mkdir(parents=True)
        path.touch()
        subprocess.run(["mount", "-o", "remount,ro", image], check=True)
        assert class_data.archive_options({})
        assert class_data.distrust_archive()
        assert class_data.archive_options({}) == []
        assert not class_data.distrust_archive()


def test_archives_that_nobody_reads_are_removed(cache: Path) -> None:
    """Each environment has its own, of 180 MB; a month without a start, and it is gone with what stands beside it."""
    old, new = cache.with_name("spark-1-java-17-old.jsa"), cache.with_name("spark-1-java-17-new.jsa")
    for archive, days in ((old, 31), (new, 29)):
        archive.touch()
        archive.with_suffix(".lock").touch()
        os.utime(archive, (time.time() - days * 86_400,) * 2)
    cache.touch()
    os.utime(cache, (0, 0))
    class_data.archive_options({})  # a start marks it as used
    class_data.forget_unused(cache.parent)
    left = {path.name for path in cache.parent.iterdir()}
    assert left == {new.name, new.with_suffix(".lock").name, cache.name, cache.with_suffix(".failed").name}


def test_a_java_that_refuses_it_gets_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = require_java()
    for version, has_one in (("17.0.15", True), ("21.0.8", False)):
        monkeypatch.setattr(class_data, "require_java", lambda version=version: replace(java, version=version))
        monkeypatch.setenv("JAVA_HOME", version)  # what is known is kept by this
        assert (class_data.archive_path() is not None) == has_one


def test_its_maker_starts_no_warm_process(tmp_path: Path) -> None:
    """It runs at the lowest priority, and a warm process would go on with that for the user's runs."""
    files = ServerFiles(tmp_path)
    files.make()
    plan = launch_plan(files, SparkSettings(), archive=False)
    environment = recording_environment(plan["env"], tmp_path / "draft")
    with pytest.raises(NotWarmError, match="CONDUIT_WARM_SECONDS is 0"):
        spawn("workers", ForkRequest("none", [], "/", environment), [0, 1, 2])
    assert not environment[STAYS], "a signal that ends the maker has to end its server too"


@pytest.mark.slow
@pytest.mark.parametrize("content", some([b"no archive at all" * 10_000], [b""]))
def test_a_broken_archive_keeps_nothing_from_starting(cache: Path, content: bytes) -> None:
    cache.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", _START], capture_output=True, text=True, timeout=280, env=dict(os.environ), check=False
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


_FUSSY = """#!/bin/sh
case "$*" in *SharedArchiveFile=*) exit 1;; esac
exec "{java}" "$@"
"""


@pytest.mark.slow
def test_a_jvm_that_crashes_on_its_archive_is_started_without_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fussy = tmp_path / "java" / "bin" / "java"
    fussy.parent.mkdir(parents=True)
    fussy.write_text(_FUSSY.format(java=require_java().home / "bin" / "java"))
    fussy.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    archive = class_data.archive_path()
    assert archive is not None and archive.parent == cache.parent
    archive.touch()
    done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, timeout=280, check=False)
    assert (done.stdout, archive.exists()) == ("3\n", False), done.stderr
