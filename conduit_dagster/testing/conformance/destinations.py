"""Conformance suite of destinations."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest

from conduit_dagster import storage
from conduit_dagster.record import Record
from conduit_dagster.sdk import (
    AlreadyClaimed,
    Delivery,
    Destination,
    DirectDestination,
    PayloadIds,
    Payloads,
    Receipt,
    SenderTask,
    StagedDestination,
    Target,
    WriterTask,
)
from conduit_dagster.sdk.destination import Claim

_CLAIMS: Final[tuple[Claim, ...]] = ("split", "nacked")
Make = Callable[[], Destination]
Delivered = Callable[[], list[int]]


def numbered(numbers: Sequence[int]) -> list[Record]:
    """Return records with these numbers in ``i``, and as their positions."""
    return [Record(str(i), {}, {"i": i}, {"i": i}) for i in numbers]


def staged(destination: Destination, folder: Path, step: int, *tasks: Sequence[int]) -> Delivery:
    """Stage a delivery as tasks do, one part per task; without a target yet."""
    url = destination.staging(str(folder / "staging")) + f"/00000001-{step:012d}-{secrets.token_hex(4)}/out"
    parts = [_part(destination, WriterTask(url, place, secrets.token_hex(4)), one) for place, one in enumerate(tasks)]
    name = hashlib.sha256(f"{step}".encode()).hexdigest()
    return Delivery(name, step, "out", url, tuple(part for part in parts if part), {})


def _part(destination: Destination, task: WriterTask, numbers: Sequence[int]) -> Any:
    writer = destination.writer(task)
    writer.place("in", numbers[0], range(len(numbers)))
    assert list(writer.write(numbered(numbers))) == [], "it refused a plain record"
    return writer.finish()


class DestinationConformance:
    """Derive ``class TestMine(DestinationConformance)`` with two fixtures.

    ``make`` returns a function that creates the destination, as another process would; ``delivered`` returns a function
    that reads the numbers (``i``) of its records, in order. The destination must accept the records of
    :func:`numbered`.
    """

    @pytest.fixture
    def make(self) -> Make:
        """Create the destination; instances may share nothing but the storage they write to."""
        pytest.fail("derive, and give a fixture make")

    @pytest.fixture
    def delivered(self) -> Delivered:
        """Return the delivered records."""
        pytest.fail("derive, and give a fixture delivered")

    @pytest.fixture
    def steps(self, make: Make, tmp_path: Path) -> Steps:
        """Stage and publish, each time as another process would."""
        return Steps(make, tmp_path)

    def test_all_of_it_is_there_once_and_in_order(self, steps: Steps, delivered: Delivered) -> None:
        """Delivers every record once, in task order and step order."""
        steps.publish(steps.prepare(1, [0, 1, 2], [3, 4]))
        steps.publish(steps.prepare(2, [5], [6, 7]))
        assert delivered() == list(range(8))

    def test_nothing_is_there_before_it_is_published(self, steps: Steps, delivered: Delivered) -> None:
        """Staging alone delivers nothing."""
        steps.publish(steps.prepare(1, [0]))
        steps.prepare(2, [1, 2])
        assert delivered() == [0]

    def test_a_task_that_is_given_up_leaves_nothing(
        self, make: Make, steps: Steps, tmp_path: Path, delivered: Delivered
    ) -> None:
        """An aborted task leaves nothing behind, whatever it had written."""
        destination = make()
        url = destination.staging(str(tmp_path / "staging")) + "/00000001-000000000001-x/out"
        writer = destination.writer(WriterTask(url, 0, "t"))
        writer.place("in", 0, range(2))
        writer.write(numbered([1, 2]))
        writer.abort()
        steps.publish(steps.prepare(1, [7]))
        assert delivered() == [7]

    def test_payloads_are_staged_like_records(self, make: Make, tmp_path: Path) -> None:
        """A block of payloads gives the bytes that its records give."""
        destination = make()
        if not (isinstance(destination, StagedDestination) and destination.takes_payloads):
            pytest.skip("its writer gets records")
        payloads = [{"i": i} for i in range(4)]
        ids = PayloadIds(list(map(str, range(4))), payloads)
        blocks = [numbered(range(4)), Payloads(payloads, Record(0, {}), ids)]
        parts, staging = [], destination.staging(str(tmp_path / "staging")) + "/x/out"
        for place, block in enumerate(blocks):
            writer = destination.writer(WriterTask(staging, place, "t"))
            writer.place("in", 0, range(4))
            assert list(writer.write(cast("list[Record]", block))) == []
            part = writer.finish()
            parts.append(part and (part.records, part.bytes, part.sha256))
        assert parts[0] is not None and parts[0] == parts[1]

    def test_blocks_make_no_difference(self, make: Make, tmp_path: Path) -> None:
        """The same records give the same bytes in blocks of any length: staged again from a log, they have others."""
        destination = make()
        if not isinstance(destination, StagedDestination):
            pytest.skip("it has no writer")
        found, staging = set[Any](), destination.staging(str(tmp_path / "staging")) + "/x/out"
        for place, length in enumerate((1, 3, 20)):
            writer = destination.writer(WriterTask(staging, place, "t"))
            for first in range(0, 20, length):
                numbers = range(first, min(first + length, 20))
                writer.place("in", first, range(len(numbers)))
                assert list(writer.write(numbered(numbers))) == []
            part = writer.finish()
            found.add(part and (part.records, part.bytes, part.sha256))
        assert len(found) == 1

    def test_publishing_again_changes_nothing(self, make: Make, steps: Steps, delivered: Delivered) -> None:
        """A repeated publish, as after a crash, duplicates nothing; without that guarantee, it loses nothing."""
        delivery = steps.prepare(1, [0, 1], [2])
        steps.publish(delivery)
        steps.publish(delivery)
        if "exactly-once" in make().strategies:
            assert delivered() == [0, 1, 2]
        assert set(delivered()) == {0, 1, 2}

    def test_it_knows_what_it_holds(self, make: Make, steps: Steps, delivered: Delivered) -> None:
        """``holds`` recognises a delivery in another process too, so that it is not sent again."""
        first = steps.prepare(1, [0, 1])
        assert not make().holds(first)
        steps.publish(first)
        if "exactly-once" not in make().strategies:
            pytest.skip("it does not say that it keeps exactly-once")
        assert make().holds(first)
        steps.goes_on_from(make().settled(first))
        second = steps.prepare(2, [2])
        assert not make().holds(second)
        steps.publish(second)
        assert make().holds(second) and delivered() == [0, 1, 2]

    def test_a_publish_that_ends_in_the_middle_counts_for_nothing(
        self, make: Make, steps: Steps, delivered: Delivered
    ) -> None:
        """What breaks off between two parts, as one whose process is killed there, is not held, and is made good."""
        if not isinstance(make(), StagedDestination):
            pytest.skip("it sends record by record")
        delivery = steps.prepare(1, [0, 1, 2], [3, 4])
        if not _fails_in_the_middle(steps, delivery):
            pytest.skip("it does not read its parts one after the other")
        if "exactly-once" in make().strategies:
            assert not make().holds(delivery), "it holds a delivery of which it has only written a part"
        steps.publish(delivery)
        assert set(delivered()) == {0, 1, 2, 3, 4}, "it takes a part of a delivery for the whole: the rest is lost"
        if "exactly-once" in make().strategies:
            assert delivered() == [0, 1, 2, 3, 4], "the part that was written before is there twice"

    def test_what_is_claimed_is_not_published(self, make: Make, steps: Steps, delivered: Delivered) -> None:
        """A delivery's late publish by a frozen owner and our claim to send it in pieces exclude each other."""
        destination = make()
        if not (destination.divisible and "exactly-once" in destination.strategies):
            pytest.skip("its deliveries are never sent in pieces")
        for step, state in enumerate(_CLAIMS, 1):
            delivery = steps.prepare(step, [0, 1])
            assert make().claim(delivery, state) == state
            assert make().claim(delivery, state) == state
            with pytest.raises(AlreadyClaimed):
                steps.publish(delivery)
            assert not make().holds(delivery), "it holds a delivery that is only claimed: its records would be lost"
        assert delivered() == []

    def test_pieces_are_the_whole(self, make: Make, steps: Steps, delivered: Delivered) -> None:
        """Children, each under its own hash, add up to the delivery; each exactly once if that is guaranteed."""
        times = 2 if "exactly-once" in make().strategies else 1
        if not make().divisible:
            pytest.skip("its deliveries are never sent in pieces")
        delivery = steps.prepare(1, [0, 1, 2], [3, 4])
        for skip, take in ((0, 1), (1, 3), (4, 1)):
            child = replace(delivery, hash=hashlib.sha256(f"{skip}".encode()).hexdigest(), skip=skip, take=take)
            for _ in range(times):
                steps.publish(child)
        assert delivered() == [0, 1, 2, 3, 4]

    def test_a_piece_may_leave_out_records(self, make: Make, steps: Steps, delivered: Delivered) -> None:
        """Records between refused ones are sent in one delivery, across tasks; exactly once if that is guaranteed."""
        if not make().skips_records:
            pytest.skip("it takes no pieces that leave out records")
        delivery = steps.prepare(1, [0, 1, 2, 3], [4, 5, 6])
        name = hashlib.sha256(b"without").hexdigest()
        piece = replace(delivery, hash=name, skip=1, take=6, without=(2, 3, 5))
        assert piece.records == 3
        for _ in range(2 if "exactly-once" in make().strategies else 1):
            steps.publish(piece)
        assert delivered() == [1, 4, 6]

    def test_claims_of_several_deliveries_are_those_of_each(self, make: Make, steps: Steps) -> None:
        """``claim_all`` claims in order, and returns for each delivery whether it was delivered or claimed before."""
        destination = make()
        if not (destination.divisible and "exactly-once" in destination.strategies):
            pytest.skip("its deliveries are never sent in pieces")
        delivery = steps.prepare(1, [0, 1, 2])
        names = [hashlib.sha256(f"{place}".encode()).hexdigest() for place in range(3)]
        pieces = [replace(delivery, hash=name, skip=place, take=1) for place, name in enumerate(names)]
        steps.publish(pieces[1])
        assert make().claim(pieces[2], "split") == "split"
        assert make().claim_all(pieces, "nacked") == ["nacked", "delivered", "split"]
        assert make().claim_all(pieces[:1], "split") == ["nacked"]
        # what was there stays: another owner asks as well
        assert make().claim_all(pieces, "nacked") == ["nacked", "delivered", "split"]

    def test_targets_are_json(self, make: Make, steps: Steps) -> None:
        """Targets survive the round trip through the state store."""
        delivery = steps.prepare(1, [0])
        for target in (delivery.target, steps.publish(delivery), make().expected(delivery)):
            assert _travelled(target) == target
            assert isinstance(target, dict), "publish() returns the target of the next delivery"

    def test_check_and_fence_change_nothing(self, make: Make, steps: Steps, delivered: Delivered) -> None:
        """``check`` and ``fence`` run before the first record of every run; what was delivered stays, and is known."""
        _begin(make, 1)
        _begin(make, 2)
        first = steps.prepare(1, [0])
        steps.publish(first)
        _begin(make, 3)
        if "exactly-once" in make().strategies:
            assert make().holds(first), "it has forgotten a delivery"
        steps.publish(steps.prepare(2, [1]))
        assert delivered() == [0, 1]

    def test_what_a_sender_acks_is_there(self, make: Make, steps: Steps, tmp_path: Path, delivered: Delivered) -> None:
        """Several calls of ``send`` and ``finish``; what is acked is there, also if the task is killed right after."""
        destination = make()
        if not isinstance(destination, DirectDestination):
            pytest.skip("it has no sender")
        delivery = steps.prepare(1, list(range(6)))
        sender = destination.sender(SenderTask(delivery.hash, delivery.consumer, delivery.step))
        try:
            for first in (0, 3):
                answer = sender.send(numbered(range(first, first + 3)), first)
                told = [*(answer or ()), *sender.finish()]
                if answer is None:
                    told = [*told, Receipt(first + 2, upto=True)]
                acked = _acked(told)
                assert acked <= set(range(first + 3)), "it acks records that it was not sent: count from first"
                assert acked >= set(range(first, first + 3)), "a record has neither an ack nor a nack"
                assert delivered() == list(range(first + 3)), "an acked record is not there, or another one twice"
            list(sender.finish())
            assert delivered() == list(range(6)), "finish() sends again what it had acked"
        finally:
            sender.close()


class Steps:
    """Successive deliveries, each staged and published by a separate process."""

    def __init__(self, make: Make, folder: Path) -> None:
        self._make, self._folder = make, folder
        self._target: Target | None = None

    def prepare(self, step: int, *tasks: Sequence[int]) -> Delivery:
        """Return a delivery with its target, after a round trip through the state store."""
        destination = self._make()
        delivery = staged(destination, self._folder, step, *tasks)
        return replace(delivery, target=_travelled(destination.target(self._target)))

    def publish(self, delivery: Delivery) -> Target:
        """Publish as the destination's kind requires."""
        destination = self._make()
        try:
            self._target = self._published(destination, delivery)
        finally:
            destination.close()
        return self._target

    def goes_on_from(self, target: Target) -> None:
        """Set the target that the next delivery begins with."""
        self._target = target

    def _published(self, destination: Destination, delivery: Delivery) -> Target:
        if isinstance(destination, StagedDestination):
            return destination.publish(delivery)
        assert isinstance(destination, DirectDestination)
        from conduit_dagster.sdk import staged_records

        sender = destination.sender(SenderTask(delivery.hash, delivery.consumer, delivery.step))
        records = [one.record for one in staged_records(delivery)]
        receipts = sender.send(records, 0)
        told = [*(receipts or ()), *sender.finish()]
        sender.close()
        if receipts is not None:
            assert _acked(told) == set(range(len(records))), "a record has neither an ack nor a nack"
        return delivery.target


def _fails_in_the_middle(steps: Steps, delivery: Delivery) -> bool:
    """Return whether a publish without the delivery's last part fails; then the part is there again."""
    if len(delivery.parts) < 2:
        return False
    place = storage.join(delivery.staging, delivery.parts[-1].name)
    with storage.open_read(place) as file:
        data = file.read()
    storage.remove(place)
    try:
        steps.publish(delivery)
    except Exception:  # noqa: BLE001  # whatever an author's code raises
        return True
    finally:
        storage.put_new(place, data)
    return False


def _begin(make: Make, epoch: int) -> None:
    destination = make()
    destination.fence(epoch)
    destination.check()
    destination.close()


def _acked(told: Sequence[Receipt]) -> set[int]:
    return {one.place for one in told} | {p for one in told if one.upto for p in range(one.place + 1)}


def _travelled(value: Any) -> Any:
    return json.loads(json.dumps(value))
