"""One ordered file: which file it is. Another file is never written to, nor mistaken for delivered content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.descriptors import open_files
from lab.file_deliveries import make, next_one, prepared, publish_some, rows, stage

from conduit_dagster.connectors.file import file_state, ordered_file
from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.connectors.file.open_file import OpenFile, WritableFile
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import Delivery, Strategy

Patch = pytest.MonkeyPatch
FOREIGN = b'{"i":9}\n'


def changed(act: Callable[[], Any], match: str | None = None) -> None:
    with pytest.raises(ConduitError, match=match) as raised:
        act()
    assert raised.value.code == "file.changed"


def swap(path: Path, data: bytes = FOREIGN) -> None:
    """Move a foreign file into place. The other one keeps its inode, under another name."""
    path.rename(path.with_name("kept"))
    path.write_bytes(data)


def after(call: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    """Call it, and then do something else once."""
    left = [then]

    def called(*args: Any) -> Any:
        result = call(*args)
        if left:
            left.pop()()
        return result

    return called


def before(call: Callable[..., Any], first: Callable[[], None]) -> Callable[..., Any]:
    """Do something else once, and then ``call``."""
    left = [first]

    def called(*args: Any) -> Any:
        if left:
            left.pop()()
        return call(*args)

    return called


@pytest.fixture(params=["exactly-once", "at-least-once", "at-most-once"])
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return request.param


@pytest.fixture
def births(monkeypatch: Patch) -> Callable[[int], None]:
    """Set every file's birth time; 0: the file system does not know it."""
    told = [1_000]
    monkeypatch.setattr(file_state, "birth_of", lambda file: told[0])
    return lambda value: told.__setitem__(0, value)


def two(root: Path, strategy: Strategy) -> tuple[FileDestination, dict[str, Any], Delivery]:
    """A destination with one delivery in its file: the target after it, and the next delivery."""
    destination = make(root, strategy=strategy)
    first, expected = next_one(destination, root, 1, [[1]], None)
    destination.publish(first)
    return destination, expected, prepared(stage(destination, root, 2, [[2]]), destination.target(expected))


# -- an inode that was given to another file ------------------------------------------------------------------------


def test_the_same_inode_with_another_birth(tmp_path: Path, births: Callable[[int], None], strategy: Strategy) -> None:
    """Byte for byte the same, by inode and length: not continued, not written to, not mistaken for delivered."""
    destination, expected, second = two(tmp_path, strategy)
    path = tmp_path / "out.jsonl"
    births(2_000)
    changed(lambda: destination.target(expected), "was replaced by another file")
    changed(lambda: destination.publish(second), "was replaced by another file")
    assert rows(path) == [1]
    births(1_000)
    destination.publish(second)
    assert destination.holds(second)
    births(2_000)
    assert not destination.holds(second)
    changed(lambda: destination.settled(second))


def test_a_short_file_with_another_birth_is_not_mended(tmp_path: Path, births: Callable[[int], None]) -> None:
    destination, path = make(tmp_path, strategy="at-most-once"), tmp_path / "out.jsonl"
    delivery, expected = next_one(destination, tmp_path, 1, [[1, 2]], None)
    publish_some(destination, delivery)
    torn = path.read_bytes()
    births(2_000)
    changed(lambda: make(tmp_path, strategy="at-most-once").target(expected))
    assert path.read_bytes() == torn


def test_another_birth_is_adopted_where_the_settings_say_so(tmp_path: Path, births: Callable[[int], None]) -> None:
    """Of the same length, so that only the birth time tells."""
    destination = make(tmp_path, **{"if-changed": "adopt"})
    first, expected = next_one(destination, tmp_path, 1, [[1]], None)
    destination.publish(first)
    second = prepared(stage(destination, tmp_path, 2, [[2]]), destination.target(expected))
    assert destination.retarget(second) is None
    births(2_000)
    target = destination.retarget(second)
    assert target is not None and target["birth"] == 2_000
    destination.publish(prepared(second, target))
    assert rows(tmp_path / "out.jsonl") == [1, 2]


def test_a_target_of_an_older_version_holds_no_birth(tmp_path: Path, strategy: Strategy) -> None:
    """A step that it prepared is published, settled and continued; the next target has the birth time."""
    destination, _, second = two(tmp_path, strategy)
    if not second.target.get("birth"):
        pytest.skip("this file system tells no births")
    old = replace(second, target={key: value for key, value in second.target.items() if key != "birth"})
    expected = destination.publish(old)
    assert "birth" not in expected
    assert destination.holds(old)
    assert destination.settled(old) == expected
    third = prepared(stage(destination, tmp_path, 3, [[3]]), make(tmp_path, strategy=strategy).target(expected))
    assert third.target["birth"] == second.target["birth"]
    destination.publish(third)
    assert rows(tmp_path / "out.jsonl") == [1, 2, 3]


# -- where no birth is told -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", ["exactly-once", "at-least-once"])
def test_without_births_a_file_is_known_by_what_is_in_it(
    tmp_path: Path, births: Callable[[int], None], known: Strategy
) -> None:
    """The same inode and length, and other bytes before the base."""
    births(0)
    destination, path = make(tmp_path, strategy=known), tmp_path / "out.jsonl"
    first, expected = next_one(destination, tmp_path, 1, [[1], [2]], None)
    destination.publish(first)
    second, expected = next_one(destination, tmp_path, 2, [[3]], expected)
    path.write_bytes(FOREIGN * 2)
    changed(lambda: destination.publish(second), "was replaced by another file")
    assert path.read_bytes() == FOREIGN * 2
    path.write_bytes(b'{"i":1}\n{"i":2}\n')
    assert destination.publish(second) == expected
    destination.target(expected)
    whole = path.read_bytes()
    path.write_bytes(FOREIGN * 3)
    changed(lambda: destination.target(expected), "was replaced by another file")
    path.write_bytes(whole[:20])
    for length in (20, 10):
        path.write_bytes(whole[:length])
        changed(lambda: destination.target(expected), f"is {length} bytes long, not 24")


def test_without_births_a_delivery_is_held_by_its_own_file(tmp_path: Path, births: Callable[[int], None]) -> None:
    births(0)
    destination, _, second = two(tmp_path, "exactly-once")
    destination.publish(second)
    assert destination.holds(second)
    (tmp_path / "out.jsonl").write_bytes(FOREIGN + b'{"i":2}\n')
    assert not destination.holds(second)


def test_without_births_a_torn_delivery_is_still_repeated(tmp_path: Path, births: Callable[[int], None]) -> None:
    """Also after a foreign last line without a line end."""
    births(0)
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"i":0}')
    destination = make(tmp_path, strategy="exactly-once")
    delivery, expected = next_one(destination, tmp_path, 1, [[1], [2]], None)
    publish_some(destination, delivery)
    again = make(tmp_path, strategy="exactly-once")
    assert again.publish(delivery) == expected
    again.target(expected)
    assert rows(path) == [0, 1, 2]


def test_without_births_late_bytes_of_at_most_once_are_no_foreign_ones(
    tmp_path: Path, births: Callable[[int], None]
) -> None:
    """A frozen owner overwrites the line ends that replaced its bytes when the next delivery was prepared."""
    births(0)
    destination = make(tmp_path, strategy="at-most-once")
    late, expected = next_one(destination, tmp_path, 1, [[1]], None)
    second, expected = next_one(destination, tmp_path, 2, [[2]], expected)
    with (tmp_path / "out.jsonl").open("r+b") as file:
        ordered_file.write_delivery(file.fileno(), late, lambda: None)
    destination.publish(second)
    make(tmp_path, strategy="at-most-once").target(expected)
    assert rows(tmp_path / "out.jsonl") == [1, 2]


# -- a path that changes hands --------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["target", "publish", "settled"])
def test_what_is_judged_is_what_is_written_to(tmp_path: Path, monkeypatch: Patch, act: str) -> None:
    """Another file takes the path before it is opened. Its content is that of the first."""
    destination, expected, second = two(tmp_path, "exactly-once")
    path = tmp_path / "out.jsonl"
    data = path.read_bytes()
    monkeypatch.setattr(WritableFile, "__init__", _ahead(WritableFile.__init__, lambda: swap(path, data)))
    given = expected if act == "target" else second
    changed(lambda: getattr(destination, act)(given), "was replaced by another file")
    assert path.read_bytes() == path.with_name("kept").read_bytes() == data


def test_a_file_that_is_put_back_once_another_is_open(tmp_path: Path, monkeypatch: Patch) -> None:
    """The file that is judged is the foreign one, although the path is ours again."""
    destination, _, second = two(tmp_path, "exactly-once")
    path = tmp_path / "out.jsonl"
    swap(path, path.read_bytes())

    def put_back() -> None:
        path.rename(path.with_name("foreign"))
        path.with_name("kept").rename(path)

    monkeypatch.setattr(WritableFile, "__init__", _then(WritableFile.__init__, put_back))
    changed(lambda: destination.publish(second), "was replaced by another file")
    assert rows(path) == rows(path.with_name("foreign")) == [1]
    destination.publish(second)
    assert rows(path) == [1, 2]


def test_a_path_that_changes_hands_before_the_bytes_are_written(tmp_path: Path, monkeypatch: Patch) -> None:
    """They go into the file that was judged; the other one keeps its own, and the next target names it."""
    destination, _, second = two(tmp_path, "exactly-once")
    path = tmp_path / "out.jsonl"
    monkeypatch.setattr(ordered_file, "write_delivery", before(ordered_file.write_delivery, lambda: swap(path)))
    expected = destination.publish(second)
    assert (path.read_bytes(), rows(path.with_name("kept"))) == (FOREIGN, [1, 2])
    changed(lambda: destination.target(expected))


def test_a_path_that_changes_hands_before_its_file_is_mended(tmp_path: Path, monkeypatch: Patch) -> None:
    destination, path = make(tmp_path, strategy="at-most-once"), tmp_path / "out.jsonl"
    delivery, expected = next_one(destination, tmp_path, 1, [[1, 2, 3]], None)
    publish_some(destination, delivery)
    torn = path.read_bytes()
    monkeypatch.setattr(ordered_file, "mend", before(ordered_file.mend, lambda: swap(path, b"\0\0\0")))
    destination.target(expected)
    assert path.read_bytes() == b"\0\0\0"
    assert path.with_name("kept").read_bytes() == torn + b"\n" * (delivery.bytes - len(torn))


def test_a_delivery_is_held_by_the_file_that_was_looked_at(tmp_path: Path, monkeypatch: Patch) -> None:
    destination, _, second = two(tmp_path, "exactly-once")
    path = tmp_path / "out.jsonl"
    destination.publish(second)
    monkeypatch.setattr(OpenFile, "__init__", _then(OpenFile.__init__, lambda: swap(path)))
    assert destination.holds(second)
    assert not destination.holds(second)


def _ahead(init: Callable[..., Any], first: Callable[[], None]) -> Any:
    called = before(init, first)
    return lambda self, *args: called(self, *args)


def _then(init: Callable[..., Any], then: Callable[[], None]) -> Any:
    called = after(init, then)
    return lambda self, *args: called(self, *args)


def test_a_removed_file_is_not_made_again(tmp_path: Path, strategy: Strategy) -> None:
    """Neither by the next target, nor by a prepared delivery."""
    destination, expected, second = two(tmp_path, strategy)
    (tmp_path / "out.jsonl").unlink()
    changed(lambda: destination.target(expected), "was removed")
    changed(lambda: destination.publish(second), "was removed")
    assert not destination.holds(second)
    assert not (tmp_path / "out.jsonl").exists()


def test_descriptors_are_given_back(tmp_path: Path, births: Callable[[int], None]) -> None:
    destination, expected, second = two(tmp_path, "at-most-once")
    open_now = open_files(tmp_path)
    for value in (1_000, 2_000):
        births(value)
        for act, given in ((destination.target, expected), (destination.publish, second), (destination.holds, second)):
            try:
                act(given)  # type: ignore[arg-type]
            except ConduitError:
                pass
    assert open_files(tmp_path) == open_now
