"""Acks of a direct destination that become durable while its job runs: the newest file that is whole counts."""

from __future__ import annotations

from pathlib import Path

from lab.small_disk import no_file_beyond
from lab.waiting import wait_until

from conduit_dagster.engine.acks import Acked, AckFile, Acks, newest


def sent(count: int) -> Acks:
    acks = Acks(0)
    for place in range(count):
        acks.sent(place, "", "in", place)
    return acks


def handled(folder: Path) -> list[int]:
    return [one.handled for one in newest(str(folder))]


def test_each_file_replaces_the_one_before(tmp_path: Path) -> None:
    acks = sent(9)
    with AckFile(acks, str(tmp_path), "job", 0.01):
        for upto in (3, 6):
            acks.ack_up_to(upto)
            wait_until(lambda upto=upto: handled(tmp_path) == [upto + 1], "the acks are durable")
        wait_until(lambda: len(list(tmp_path.iterdir())) == 1, "the older file is gone")


def test_a_full_disk_delays_acks_only_while_it_is_full(tmp_path: Path) -> None:
    acks = sent(9)
    with AckFile(acks, str(tmp_path), "job", 0.01):
        acks.ack_up_to(2)
        wait_until(lambda: handled(tmp_path) == [3], "the acks are durable")
        with no_file_beyond(1):
            acks.ack_up_to(5)
            tried = next(tmp_path.iterdir()).name
            wait_until(lambda: tried != max(path.name for path in tmp_path.iterdir()), "another file is tried")
            assert handled(tmp_path) == [3]
        wait_until(lambda: handled(tmp_path) == [6], "the acks are durable again")


def test_a_torn_file_hides_nothing(tmp_path: Path) -> None:
    acks = sent(9)
    with AckFile(acks, str(tmp_path), "job", 0.01):
        acks.ack_up_to(4)
        wait_until(lambda: handled(tmp_path) == [5], "the acks are durable")
    (whole,) = tmp_path.iterdir()
    for number, torn in ((1, b""), (2, whole.read_bytes()[:-1])):
        (tmp_path / f"acks-job-{number:08d}.json").write_bytes(torn)
    (tmp_path / "acks-other-00000000.json").write_bytes(b"")
    assert newest(str(tmp_path)) == [Acked(5, ("in", 5), {"": (4, "in", 4)})]
