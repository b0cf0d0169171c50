"""What reaches the disk, and what happens if it is full."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.file_deliveries import make, prepared, rows, stage
from lab.kills import hooked
from lab.parts_stream import read_folder
from lab.small_disk import fill, mounted

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Delivery, Strategy

MANY = list(range(2_000))
TESTS = Path(__file__).parents[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB and 40 inodes."""
    with mounted(tmp_path / "disk", "256k", 40) as disk:
        yield disk


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
def test_a_full_disk_leaves_the_delivery_to_be_repeated(tmp_path: Path, small_disk: Path, strategy: Strategy) -> None:
    """However often it is tried meanwhile."""
    destination, path = make(small_disk, strategy=strategy), small_disk / "out.jsonl"
    delivery = prepared(stage(destination, tmp_path, 1, [[0], MANY]), destination.target(None))
    ballast = fill(small_disk, 8_192)
    for _ in range(2):
        with pytest.raises(TransientError) as error:
            destination.publish(delivery)
        assert error.value.code == "file.disk_full"
        assert not destination.holds(delivery)
    assert 0 < path.stat().st_size < delivery.bytes
    ballast.unlink()
    destination.publish(delivery)
    assert rows(path) == [0, *MANY]


def test_a_full_disk_drops_an_at_most_once_delivery(tmp_path: Path, small_disk: Path) -> None:
    """Its range can't be filled either until there is space; then the next delivery follows."""
    destination, path = make(small_disk, strategy="at-most-once"), small_disk / "out.jsonl"
    delivery = prepared(stage(destination, tmp_path, 1, [MANY]), destination.target(None))
    ballast = fill(small_disk, 8_192)
    with pytest.raises(TransientError):
        destination.publish(delivery)
    written = path.stat().st_size
    with pytest.raises(TransientError) as error:
        destination.target(destination.expected(delivery))
    assert error.value.code == "file.disk_full"
    ballast.unlink()
    second = prepared(stage(destination, tmp_path, 2, [[7]]), destination.target(destination.expected(delivery)))
    destination.publish(second)
    data, staged = path.read_bytes(), Path(delivery.staging, delivery.parts[0].name).read_bytes()
    assert data == staged[:written] + b"\n" * (delivery.bytes - written) + b'{"i":7}\n'
    assert 0 < written < delivery.bytes


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_folder_on_a_full_disk_stays_as_it_was(small_disk: Path, left: int) -> None:
    """Full before the hidden folder, before its first part, before its second."""
    destination, out = make(small_disk, "out/"), small_disk / "out"
    delivery = prepared(stage(destination, small_disk, 1, [[1], [2], [3]]), destination.target(None))
    ballast = small_disk / "ballast"
    ballast.mkdir()
    free = os.statvfs(small_disk).f_ffree
    for i in range(free - left):
        (ballast / str(i)).touch()
    with pytest.raises(TransientError) as error:
        destination.publish(delivery)
    assert error.value.code == "file.disk_full"
    assert list(out.glob("step=*")) == []
    assert list(Path(delivery.staging).parent.glob("ready-*")) == []
    for file in ballast.iterdir():
        file.unlink()
    destination.publish(delivery)
    assert list(read_folder(out)) == [b'{"i":1}\n', b'{"i":2}\n', b'{"i":3}\n']


_LIMITED = """
import pickle, resource, sys
from lab.file_deliveries import make
from conduit_dagster.recovery.errors import ConduitError
root, limit, delivery = pickle.load(sys.stdin.buffer)
destination = make(root)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    destination.publish(delivery)
except ConduitError as error:
    print(error.code)
"""


def test_a_file_that_may_not_grow_is_gone_on_with(tmp_path: Path) -> None:
    """A process with a file size limit stops inside the delivery; one without completes it."""
    destination, path = make(tmp_path), tmp_path / "out.jsonl"
    delivery = prepared(stage(destination, tmp_path, 1, [MANY]), destination.target(None))
    found = subprocess.run(
        [sys.executable, "-c", _LIMITED],
        input=pickle.dumps((tmp_path, 10_001, delivery)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        capture_output=True,
        check=True,
    )
    assert found.stdout.decode().strip() == "file.too_big"
    assert path.stat().st_size == 10_001
    destination.publish(delivery)
    assert rows(path) == MANY


class Syncs:
    """Every file and folder that is synced, as it happens."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.inodes: list[int] = []
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        self.inodes.append(os.fstat(descriptor).st_ino)

    def have(self, *paths: Path, since: int = 0, upto: int | None = None) -> bool:
        return {path.stat().st_ino for path in paths} <= set(self.inodes[since:upto])


def publish_noting(root: Path, path: str, syncs: Syncs) -> tuple[Delivery, int]:
    """A published delivery, and the number of syncs when half of its bytes were written, or before it was visible."""
    half: list[int] = []
    destination = make(root, path)
    delivery = prepared(stage(destination, root, 1, [[1], [2]]), destination.target(None))
    with hooked(lambda point, pipeline: half.append(len(syncs.inodes))):
        destination.publish(delivery)
    return delivery, half[0]


def test_a_file_and_the_folders_that_lead_to_it_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders, which are new, before anything is prepared; the bytes before publish returns."""
    syncs = Syncs(monkeypatch)
    _, half = publish_noting(tmp_path, "a/b/out.jsonl", syncs)
    assert syncs.have(tmp_path / "a/b", tmp_path / "a", tmp_path)
    assert syncs.have(tmp_path / "a/b/out.jsonl", since=half)


def test_nothing_above_the_mount_point_is_synced(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount point existed before; whatever lies above it is not ours."""
    syncs = Syncs(monkeypatch)
    make(small_disk, "a/out.jsonl").check()
    assert syncs.have(small_disk / "a", small_disk)
    assert not syncs.have(small_disk.parent)


def test_a_folder_is_durable_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its own entry before publish returns."""
    syncs = Syncs(monkeypatch)
    _, half = publish_noting(tmp_path, "a/out/", syncs)
    [visible] = (tmp_path / "a/out").glob("step=*")
    assert syncs.have(visible, *visible.iterdir(), tmp_path / "a", tmp_path, upto=half)
    assert syncs.have(tmp_path / "a/out", since=half)


@pytest.mark.parametrize("path", ["out.jsonl", "out/"])
def test_what_is_found_there_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Its writer may have died before that."""
    delivery, _ = publish_noting(tmp_path, path, Syncs(monkeypatch))
    syncs = Syncs(monkeypatch)
    make(tmp_path, path).settled(delivery)
    written = [tmp_path / path, *(tmp_path / path).glob("step=*"), *(tmp_path / path).glob("step=*/*")]
    assert syncs.have(*written)
