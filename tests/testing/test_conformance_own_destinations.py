"""The conformance suite of destinations, on plugins of a user: sound ones, and one for each rule that is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from lab.conformance_runs import Make, context, run_check

from conduit_dagster.record import Record
from conduit_dagster.sdk import (
    AlreadyClaimed,
    ConnectorSettings,
    Delivery,
    Destination,
    DirectDestination,
    DriverDestination,
    Receipt,
    RecordWriter,
    Sender,
    StagedDestination,
    StagedWriter,
    Writer,
    WriterTask,
    staged_records,
)
from conduit_dagster.testing.conformance import DestinationConformance
from conduit_dagster.testing.conformance.destinations import Steps


class Shelf(DriverDestination):
    """Keeps numbers in a file."""

    name = "shelf"

    def deliver(self, records: Any, delivery: Any) -> None:
        with Path(self.context.resolve("shelf")).open("a") as file:
            file.writelines(f"{cast(dict[str, Any], record.after)['i']}\n" for record in records)


class Post(DirectDestination):
    """The same, by a sender."""

    name = "post"

    def sender(self, task: Any) -> Sender:
        return Posting(Path(self.context.resolve("shelf")))


class Posting(Sender):
    def __init__(self, path: Path) -> None:
        self.path = path

    def send(self, records: list[Record], first: int) -> Any:
        with self.path.open("a") as file:
            file.writelines(f"{cast(dict[str, Any], record.after)['i']}\n" for record in records)
        return [Receipt(first + len(records) - 1, upto=True)]


class OfShelves(DestinationConformance):
    kind: type[Destination]

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: self.kind(ConnectorSettings(), context(tmp_path))

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        path = tmp_path / "shelf"
        return lambda: [int(line) for line in path.read_text().split()] if path.exists() else []


class TestShelf(OfShelves):
    kind = Shelf


class TestPost(OfShelves):
    kind = Post


class Boasts(Shelf):
    strategies = frozenset({"exactly-once"})


class Loses(Shelf):
    def deliver(self, records: Any, delivery: Any) -> None:
        super().deliver(list(records)[1:], delivery)


class Cleans(Shelf):
    """Begins with nothing, in each run."""

    def check(self) -> None:
        Path(self.context.resolve("shelf")).unlink(missing_ok=True)


class Ledger(StagedDestination):
    """Keeps a hash, and whether it is delivered or claimed, in a file of its own."""

    name = "ledger"
    strategies = frozenset({"exactly-once", "at-least-once"})
    divisible = True
    target_after: Any = {}

    def writer(self, task: Any) -> Any:
        return RecordWriter(task)

    def publish(self, delivery: Delivery) -> Any:
        lines = list(self.lines(delivery))
        if self.refuses(there := self.put(delivery, "delivered")):
            raise AlreadyClaimed(cast(Any, there))
        if there != "delivered":
            self.append(lines)
        return self.target_after

    def lines(self, delivery: Delivery) -> Iterator[str]:
        return (f"{cast(Any, one.record.after)['i']}\n" for one in staged_records(delivery))

    def append(self, lines: Iterable[str]) -> None:
        with Path(self.context.resolve("shelf")).open("a") as file:
            file.writelines(lines)

    def refuses(self, there: str | None) -> bool:
        return there in ("split", "nacked")

    def holds(self, delivery: Delivery) -> bool:
        return self.path(delivery).exists() and self.path(delivery).read_text() == "delivered"

    def claim(self, delivery: Delivery, state: Any) -> Any:
        return self.put(delivery, state) or state

    def put(self, delivery: Delivery, state: str) -> str | None:
        there = self.path(delivery).read_text() if self.path(delivery).exists() else None
        if there is None:
            self.path(delivery).write_text(state)
        return there

    def path(self, delivery: Delivery) -> Path:
        return Path(self.context.resolve(f"hash-{delivery.hash}"))


class TestLedger(OfShelves):
    kind = Ledger


class HoldsClaims(Ledger):
    """Takes a claim for a delivery: what it claims is lost."""

    def holds(self, delivery: Delivery) -> bool:
        return self.path(delivery).exists()


class PublishesNacked(Ledger):
    def refuses(self, there: str | None) -> bool:
        return there == "split"


class Overwrites(Ledger):
    """Returns what was there, and does not keep it."""

    def claim(self, delivery: Delivery, state: Any) -> Any:
        there = self.put(delivery, state)
        self.path(delivery).write_text(state)
        return there or state


class MarksFirst(Ledger):
    """Stores the hash, and then writes record by record: what is left of a publish that was killed is lost."""

    def publish(self, delivery: Delivery) -> Any:
        if self.put(delivery, "delivered") is None:
            self.append(self.lines(delivery))
        return {}


class MarksLast(Ledger):
    """Writes record by record, and then stores the hash: what a killed publish had written is there twice."""

    def publish(self, delivery: Delivery) -> Any:
        if not self.holds(delivery):
            self.append(self.lines(delivery))
            self.put(delivery, "delivered")
        return {}


class GivesNoTarget(Ledger):
    target_after = None


class Sends(Post):
    """Makes its sender of :attr:`of`."""

    of: type[Posting]

    def sender(self, task: Any) -> Sender:
        return self.of(Path(self.context.resolve("shelf")))


class Restarts(Posting):
    def send(self, records: list[Record], first: int) -> Any:
        super().send(records, first)
        return [Receipt(place) for place in range(len(records))]


class CountsFromZero(Sends):
    of = Restarts


class Waits(Posting):
    """Sends what it has acked only once it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.waiting = list[Record]()

    def send(self, records: list[Record], first: int) -> Any:
        self.waiting += records

    def close(self) -> None:
        super().send(self.waiting, 0)


class SendsLate(Sends):
    of = Waits


class Repeats(Waits):
    """Sends all of it at each ``finish``."""

    def finish(self) -> Any:
        Posting.send(self, self.waiting, 0)
        return ()

    def close(self) -> None:
        pass


class SendsAgain(Sends):
    of = Repeats


class Early(Shelf):
    def writer(self, task: Any) -> Any:
        self.deliver([Record(1, {}, {"i": 9})], None)
        return super().writer(task)


class MarksBlocks(StagedDestination):
    """Stages a line before each block."""

    name = "marks-blocks"

    def writer(self, task: WriterTask) -> Writer:
        return StagedWriter(task, _MarkedBlocks())

    def publish(self, delivery: Delivery) -> Any:
        return {}


class _MarkedBlocks:
    def encode_block(self, records: list[Record]) -> tuple[bytes, Any]:
        return b"\n".join([b"block", *(str(record.position).encode() for record in records), b""]), []


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (MarksBlocks, "blocks_make_no_difference"),
        (Boasts, "publishing_again_changes_nothing"),
        (Boasts, "it_knows_what_it_holds"),
        (Loses, "all_of_it_is_there_once_and_in_order"),
        (Early, "nothing_is_there_before_it_is_published"),
        (Early, "a_task_that_is_given_up_leaves_nothing"),
        (Cleans, "check_and_fence_change_nothing"),
        (MarksFirst, "a_publish_that_ends_in_the_middle_counts_for_nothing"),
        (MarksLast, "a_publish_that_ends_in_the_middle_counts_for_nothing"),
        (HoldsClaims, "what_is_claimed_is_not_published"),
        (PublishesNacked, "what_is_claimed_is_not_published"),
        (Overwrites, "claims_of_several_deliveries_are_those_of_each"),
        (GivesNoTarget, "targets_are_json"),
        (CountsFromZero, "what_a_sender_acks_is_there"),
        (SendsLate, "what_a_sender_acks_is_there"),
        (SendsAgain, "what_a_sender_acks_is_there"),
    ],
)
def test_a_destination_that_breaks_a_rule_is_found(tmp_path: Path, kind: type[Destination], check: str) -> None:
    path = tmp_path / "shelf"

    def make() -> Destination:
        return kind(ConnectorSettings(), context(tmp_path))

    def delivered() -> list[int]:
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    every = {"make": make, "tmp_path": tmp_path, "delivered": delivered, "steps": Steps(make, tmp_path)}
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_check(DestinationConformance(), check, every)
