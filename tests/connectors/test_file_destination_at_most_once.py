"""At-most-once in one ordered file: a truncated delivery stays truncated, and the following one is whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lab.file_deliveries import make, next_one, prepared, publish_some, rows

from conduit_dagster.connectors.file.destination import FileDestination, stretches
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import Delivery, Strategy, WriterTask


def once(root: Path, path: str = "out.jsonl", **settings: str) -> FileDestination:
    return make(root, path, "at-most-once", **settings)


def test_what_is_expected_is_what_comes_out(tmp_path: Path) -> None:
    """Before and after publishing, and by another process that only syncs it."""
    destination = once(tmp_path)
    delivery, expected = next_one(destination, tmp_path, 1, [[1, 2], [3]], None)
    assert not destination.holds(delivery)
    assert destination.publish(delivery) == expected == once(tmp_path).settled(delivery)
    second, _ = next_one(destination, tmp_path, 2, [[4]], expected)
    destination.publish(second)
    assert rows(tmp_path / "out.jsonl") == [1, 2, 3, 4]
    assert b"\n\n" not in (tmp_path / "out.jsonl").read_bytes()


@pytest.mark.parametrize("strategy", ["at-least-once", "exactly-once"])
def test_the_other_strategies_expect_nothing_but_the_length(tmp_path: Path, strategy: Strategy) -> None:
    """And a file shorter than that was changed by another process."""
    destination = make(tmp_path, strategy=strategy)
    delivery, expected = next_one(destination, tmp_path, 1, [[1]], None)
    assert sorted(expected.keys() - {"birth", "marked", "formats"}) == ["inode", "length", "path"]
    assert destination.publish(delivery) == expected == destination.settled(delivery)
    os.truncate(tmp_path / "out.jsonl", 3)
    with pytest.raises(ConduitError, match="is 3 bytes long, not 8"):
        destination.target(expected)


def test_a_delivery_that_was_never_written_leaves_its_place(tmp_path: Path) -> None:
    """Also several of them, the first one right at the beginning."""
    destination, expected = once(tmp_path), None
    for step in range(1, 6):
        delivery, expected = next_one(destination, tmp_path, step, [[step]], expected)
        if step in (3, 5):
            destination.publish(delivery)
    data = (tmp_path / "out.jsonl").read_bytes()
    assert data == b"\n" * 16 + b'{"i":3}\n' + b"\n" * 8 + b'{"i":5}\n'


@pytest.mark.parametrize("restarted", [True, False])
def test_a_torn_line_ends_before_the_next_delivery(tmp_path: Path, restarted: bool) -> None:
    """Whoever repairs it, and however often."""
    destination = once(tmp_path)
    delivery, expected = next_one(destination, tmp_path, 1, [[1, 2, 3]], None)
    publish_some(destination, delivery)
    destination = once(tmp_path) if restarted else destination
    assert destination.target(expected) == destination.target(expected) == once(tmp_path).target(expected)
    second, _ = next_one(destination, tmp_path, 2, [[4]], expected)
    destination.publish(second)
    whole = b'{"i":1}\n{"i":2}\n{"i":3}\n'
    assert (tmp_path / "out.jsonl").read_bytes() == whole[:12] + b"\n" * 12 + b'{"i":4}\n'


def test_holes_become_line_ends_and_nothing_else_changes(tmp_path: Path) -> None:
    """After a power cut: zero bytes inside the last delivery's range, and a file that is too short."""
    destination, path = once(tmp_path), tmp_path / "out.jsonl"
    first, expected = next_one(destination, tmp_path, 1, [[1]], None)
    destination.publish(first)
    delivery, expected = next_one(destination, tmp_path, 2, [[2, 3], [4, 5]], expected)
    destination.publish(delivery)
    data = path.read_bytes()
    path.write_bytes(data[:10] + b"\0" * 5 + data[15:26] + b"\0\0" + data[28:35])
    assert once(tmp_path).target(expected)["base"] == len(data)
    assert path.read_bytes() == data[:10] + b"\n" * 5 + data[15:26] + b"\n\n" + data[28:35] + b"\n" * 5


def test_a_delivery_that_was_cut_after_it_was_written_is_mended(tmp_path: Path) -> None:
    """Also by the process that wrote it completely."""
    destination, path = once(tmp_path), tmp_path / "out.jsonl"
    delivery, expected = next_one(destination, tmp_path, 1, [[1]], None)
    destination.publish(delivery)
    os.truncate(path, 5)
    assert destination.target(expected)["base"] == 8
    assert path.read_bytes() == b'{"i":\n\n\n'


def test_a_mended_file_is_durable_before_anything_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies between the last delivery's bytes and the next one's is never checked again."""
    destination, path, synced = once(tmp_path), tmp_path / "out.jsonl", list[int]()
    _, expected = next_one(destination, tmp_path, 1, [[1]], None)
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), sync(fd)))
    destination.target(expected)
    assert path.stat().st_size == 8
    assert synced == [8]


def test_zero_bytes_of_the_records_themselves_stay(tmp_path: Path) -> None:
    """A template may write any byte. Only parts that differ from their staging are searched for holes."""
    destination = once(
        tmp_path, **{"sdk.record.format": "template", "sdk.record.format.options": "{{ .Payload.After }}"}
    )
    parts = []
    for index in range(2):
        writer = destination.writer(WriterTask(str(tmp_path / "s"), index, f"t{index}"))
        assert list(writer.write([Record(index, {}, b"a\0b%d" % index)])) == []
        parts.append(writer.finish())
    delivery = Delivery("0" * 64, 1, "out", str(tmp_path / "s"), tuple(filter(None, parts)), {})
    delivery = prepared(delivery, destination.target(None))
    expected = destination.publish(delivery)
    path = tmp_path / "out.jsonl"
    staged = path.read_bytes()
    assert staged == b"a\0b0\na\0b1\n"
    path.write_bytes(staged[:-2])
    once(tmp_path).target(expected)
    assert path.read_bytes() == b"a\0b0\na\nb\n\n"


@pytest.mark.parametrize("how", ["grown", "cut", "replaced", "removed"])
def test_a_foreign_change_is_refused_and_can_be_adopted(tmp_path: Path, how: str) -> None:
    """Only the last delivery's own range may be short: the file ended at its base when it was prepared."""
    destination, path = once(tmp_path), tmp_path / "out.jsonl"
    first, expected = next_one(destination, tmp_path, 1, [[1]], None)
    destination.publish(first)
    delivery, expected = next_one(destination, tmp_path, 2, [[2]], expected)
    destination.publish(delivery)
    change(path, how)
    data = path.read_bytes() if path.exists() else None
    with pytest.raises(ConduitError) as error:
        once(tmp_path).target(expected)
    assert error.value.code == "file.changed"
    assert (path.read_bytes() if path.exists() else None) == data
    adopting = once(tmp_path, **{"if-changed": "adopt"})
    third, _ = next_one(adopting, tmp_path, 3, [[3]], expected)
    adopting.publish(third)
    assert (
        path.read_bytes()
        == {
            "grown": b'{"i":1}\n{"i":2}\nforeign\n{"i":3}\n',
            "cut": b'{"i"\n{"i":3}\n',
            "replaced": b'{"i":9}\n{"i":3}\n',
            "removed": b'{"i":3}\n',
        }[how]
    )


def change(path: Path, how: str) -> None:
    if how == "grown":
        path.write_bytes(path.read_bytes() + b"foreign\n")
    elif how == "cut":
        os.truncate(path, 4)
    else:
        path.rename(path.with_name("kept"))  # so that its inode is not reused
        if how == "replaced":
            path.write_bytes(b'{"i":9}\n')


def test_a_short_file_is_mended_also_where_changes_are_adopted(tmp_path: Path) -> None:
    """A dropped delivery is not a foreign change: its range remains its own."""
    destination = once(tmp_path, **{"if-changed": "adopt"})
    dropped, expected = next_one(destination, tmp_path, 1, [[1]], None)
    assert destination.target(expected)["base"] == dropped.bytes


def test_a_missing_line_end_of_somebody_else_is_made_up_for(tmp_path: Path) -> None:
    """Also if the delivery that should have written it was dropped."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"i":0}')
    destination = once(tmp_path)
    _, expected = next_one(destination, tmp_path, 1, [[1]], None)
    delivery, _ = next_one(destination, tmp_path, 2, [[2]], expected)
    destination.publish(delivery)
    assert path.read_bytes() == b'{"i":0}\n' + b"\n" * 8 + b'{"i":2}\n'


@pytest.mark.parametrize(("before", "after"), [("at-most-once", "at-least-once"), ("at-least-once", "at-most-once")])
def test_the_strategy_may_change_between_runs(tmp_path: Path, before: Strategy, after: Strategy) -> None:
    """Promises under the old rules are judged by the old rules."""
    delivery, expected = next_one(make(tmp_path, strategy=before), tmp_path, 1, [[1]], None)
    make(tmp_path, strategy=before).publish(delivery)
    os.truncate(tmp_path / "out.jsonl", 5)
    if before == "at-least-once":
        with pytest.raises(ConduitError, match="is 5 bytes long"):
            make(tmp_path, strategy=after).target(expected)
        return
    destination = make(tmp_path, strategy=after)
    second, _ = next_one(destination, tmp_path, 2, [[2]], expected)
    expected = destination.publish(second)
    assert (expected["length"], "base" in expected, "parts" in expected) == (16, False, False)
    assert (tmp_path / "out.jsonl").read_bytes() == b'{"i":\n\n\n{"i":2}\n'


def test_a_deposed_owner_mends_nothing_behind_its_own_last_delivery(tmp_path: Path) -> None:
    """It asks for a target with outdated knowledge; the file has changed since."""
    old, new, path = once(tmp_path), once(tmp_path), tmp_path / "out.jsonl"
    _, known = next_one(old, tmp_path, 1, [[1]], None)
    second, _ = next_one(new, tmp_path, 2, [[2, 3]], known)
    publish_some(new, second)
    data = path.read_bytes()
    with pytest.raises(ConduitError):
        old.target(known)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("left", "missing"),
    [
        (8, [8, 24]),  # nothing of the second delivery
        (13, [8, 24]),  # a torn line
        (16, [16, 24]),  # one whole line
        (23, None),  # all but the last line end
    ],
)
def test_the_target_says_where_lines_are_missing(tmp_path: Path, left: int, missing: list[int] | None) -> None:
    """For a reader of the output; also if the process dies between mending the file and storing the target."""
    destination, path = once(tmp_path), tmp_path / "out.jsonl"
    first, expected = next_one(destination, tmp_path, 1, [[0]], None)
    destination.publish(first)
    second, expected = next_one(destination, tmp_path, 2, [[1, 2]], expected)
    destination.publish(second)
    os.truncate(path, left)
    once(tmp_path).target(expected)
    _, expected = next_one(once(tmp_path), tmp_path, 3, [[3]], expected)
    end = [] if missing is None else [(missing[0], "payload/json"), (missing[1], "")]
    assert stretches(expected, 0, expected["length"]) == [*end, (expected["length"], "payload/json")]
