"""An owner that froze in the middle of publishing and continues, or dies, after another one took over."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lab.file_deliveries import killed_mid_publish, make, prepared, rows, stage
from lab.parts_stream import read_folder
from lab.waiting import wait_until

from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.recovery import kill_points
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import Delivery, Strategy

STRATEGIES: list[Strategy] = ["exactly-once", "at-least-once", "at-most-once"]
PATHS = ["out.jsonl", "out/"]
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
each_layout = pytest.mark.parametrize("path", PATHS)


class Frozen:
    """A publish in its own thread that stands still in the middle until it is thawed."""

    def __init__(self, patch: pytest.MonkeyPatch, destination: FileDestination, delivery: Delivery) -> None:
        self._inside, self._go_on = threading.Event(), threading.Event()
        patch.setattr(kill_points, "hook", self._hook)
        self._pool = ThreadPoolExecutor(1, "frozen")
        self._future: Future[Any] = self._pool.submit(destination.publish, delivery)
        wait_until(self._inside.is_set, "it stands in the middle", over=self._future.done)

    def _hook(self, point: str, pipeline: str) -> None:
        if threading.current_thread().name.startswith("frozen"):
            self._inside.set()
            assert self._go_on.wait(120), "nobody thawed it"

    def thaw(self) -> Any:
        self._go_on.set()
        try:
            return self._future.result(120)
        finally:
            self._pool.shutdown()


def handed_over(root: Path, path: str, strategy: Strategy) -> tuple[FileDestination, FileDestination, Delivery]:
    """An owner, its successor, and a delivery prepared by the first one."""
    old, new = make(root, path, strategy), make(root, path, strategy)
    return old, new, prepared(stage(old, root, 1, [[1], [2, 3]]), old.target(None))


def take_over(new: FileDestination, delivery: Delivery) -> dict[str, Any]:
    """What the engine does with a prepared delivery of a former owner; return the target after it."""
    if new.context.strategy == "at-most-once":
        return new.expected(delivery)
    assert not new.holds(delivery)
    return new.publish(delivery)


def publish_next(new: FileDestination, root: Path, after: dict[str, Any]) -> dict[str, Any]:
    delivery = prepared(stage(new, root, 2, [[4], [5, 6]]), new.target(after))
    return new.publish(delivery)


def content(root: Path, path: str) -> list[int]:
    if path == "out.jsonl":
        return rows(root / path)
    return [int(line.split(b":")[1].rstrip(b"}\n")) for line in read_folder(root / path)]


@each_layout
@each_strategy
def test_a_thawed_owner_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Strategy, path: str
) -> None:
    """It rewrites its own bytes in their own place; with at-most-once only it writes them, late."""
    old, new, delivery = handed_over(tmp_path, path, strategy)
    frozen = Frozen(monkeypatch, old, delivery)
    after = take_over(new, delivery)
    last = publish_next(new, tmp_path, after)
    assert frozen.thaw() == after
    assert content(tmp_path, path) == [1, 2, 3, 4, 5, 6]
    assert new.holds(delivery)
    new.target(last)
    if path == "out.jsonl":
        assert b"\n\n" not in (tmp_path / path).read_bytes()


@each_layout
@each_strategy
def test_an_owner_that_dies_in_the_middle(tmp_path: Path, strategy: Strategy, path: str) -> None:
    """The next owner completes the delivery; with at-most-once the missing part stays missing."""
    old, new, delivery = handed_over(tmp_path, path, strategy)
    with killed_mid_publish():
        old.publish(delivery)
    publish_next(new, tmp_path, take_over(new, delivery))
    if strategy != "at-most-once":
        assert content(tmp_path, path) == [1, 2, 3, 4, 5, 6]
    elif path == "out/":
        assert content(tmp_path, path) == [4, 5, 6]
    else:
        lines = b'{"i":1}\n{"i"' + b"\n" * 12 + b'{"i":4}\n{"i":5}\n{"i":6}\n'
        assert (tmp_path / path).read_bytes() == lines


@each_layout
@each_strategy
def test_an_owner_that_thaws_before_it_publishes(tmp_path: Path, strategy: Strategy, path: str) -> None:
    """In one file it finds later bytes after its own, and writes nothing."""
    old, new, delivery = handed_over(tmp_path, path, strategy)
    publish_next(new, tmp_path, take_over(new, delivery))
    if path == "out/":
        old.publish(delivery)
        assert content(tmp_path, path) == [1, 2, 3, 4, 5, 6]
        return
    data = (tmp_path / path).read_bytes()
    with pytest.raises(ConduitError) as error:
        old.publish(delivery)
    assert error.value.code == "file.changed"
    assert (tmp_path / path).read_bytes() == data


@each_layout
@each_strategy
def test_a_thawed_owner_whose_staging_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Strategy, path: str
) -> None:
    """The new owner removed it when the step was done. No line of another delivery is touched."""
    old, new, delivery = handed_over(tmp_path, path, strategy)
    frozen = Frozen(monkeypatch, old, delivery)
    after = take_over(new, delivery)
    shutil.rmtree(Path(delivery.staging).parent)
    publish_next(new, tmp_path, after)
    if path == "out/" and strategy != "at-most-once":
        assert frozen.thaw() == after
    elif path == "out/":
        with pytest.raises(ConduitError):
            frozen.thaw()
        assert content(tmp_path, path) == [4, 5, 6]
        return
    else:
        frozen.thaw()  # it still has the file open
    assert content(tmp_path, path) == [1, 2, 3, 4, 5, 6]


@each_layout
def test_two_owners_in_the_middle_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The second one publishes and freezes too; the first one wins the race, and both see the delivery."""
    first, second, delivery = handed_over(tmp_path, path, "at-least-once")
    one = Frozen(monkeypatch, first, delivery)
    other = Frozen(monkeypatch, second, delivery)
    assert one.thaw() == other.thaw()
    assert content(tmp_path, path) == [1, 2, 3]
    assert first.holds(delivery)
