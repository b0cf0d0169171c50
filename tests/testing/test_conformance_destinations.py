"""The conformance suite of destinations: every built-in passes, and one that breaks a rule does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lab import delta_deliveries, file_deliveries
from lab.conformance_runs import Make, context, run_check
from lab.parts_stream import read_folder
from lab.postgres_lab import PostgresLab
from lab.postgres_server import PostgresServer
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from conduit_dagster.builtin_plugins import DESTINATIONS
from conduit_dagster.connectors.log.destination import LogDestination
from conduit_dagster.connectors.parquet.destination import ParquetDestination, ParquetDestinationSettings
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


class TestOrderedFile(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: file_deliveries.make(tmp_path, strategy="exactly-once")

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        path = tmp_path / "out.jsonl"
        return lambda: file_deliveries.rows(path) if path.exists() else []


class TestFolder(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: file_deliveries.make(tmp_path, "out/", strategy="exactly-once")

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        path = tmp_path / "out"
        return lambda: [json.loads(line)["i"] for line in read_folder(path)] if path.exists() else []


class TestDelta(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: delta_deliveries.make(tmp_path)

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        def read() -> list[int]:
            path = tmp_path / "table"
            if not DeltaTable.is_deltatable(str(path)):
                return []
            files = sorted(DeltaTable(str(path)).file_uris(), key=lambda uri: uri.rpartition("/")[2])
            return [row["i"] for uri in files for row in pq.read_table(uri).to_pylist()]

        return read


class TestParquetFolder(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        settings = ParquetDestinationSettings.model_validate({"path": "out"})
        return lambda: ParquetDestination(settings, context(tmp_path))

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        def read() -> list[int]:
            files = sorted((tmp_path / "out").glob("step=*/*.parquet"))
            return [row["i"] for path in files for row in pq.ParquetFile(path).read().to_pylist()]

        return read


class TestSparkOrc(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path, spark: SparkSession) -> Make:
        kind: Any = DESTINATIONS.find("spark:orc", {})
        return lambda: kind(kind.Settings.model_validate({"path": "out"}), context(tmp_path))

    @pytest.fixture
    def delivered(self, tmp_path: Path, spark: SparkSession) -> Callable[[], list[int]]:
        path = tmp_path / "out"
        return lambda: [row.i for row in spark.read.orc(str(path)).sort("i").collect()] if path.exists() else []


class TestPostgres(DestinationConformance):
    @pytest.fixture
    def lab(self, postgres_server: PostgresServer, tmp_path: Path) -> PostgresLab:
        made = PostgresLab(postgres_server.create_database(), tmp_path)
        made.reset()
        made.execute("CREATE TABLE t (n bigserial PRIMARY KEY, i bigint)")
        return made

    @pytest.fixture
    def make(self, lab: PostgresLab) -> Make:
        return lab.destination

    @pytest.fixture
    def delivered(self, lab: PostgresLab) -> Callable[[], list[int]]:
        return lambda: [i for _, i in lab.rows()]


class TestLog(DestinationConformance):
    @pytest.fixture
    def logged(self) -> Iterator[list[Any]]:
        with capture_logs() as logged:
            yield logged

    @pytest.fixture
    def make(self, tmp_path: Path, logged: list[Any]) -> Make:
        return lambda: LogDestination(LogDestination.Settings(), context(tmp_path))

    @pytest.fixture
    def delivered(self, logged: list[Any]) -> Callable[[], list[int]]:
        return lambda: [json.loads(row["record"])["payload"]["after"]["i"] for row in logged if "record" in row]


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
        if self.refuses(there := self.put(delivery, "delivered")):
            raise AlreadyClaimed(cast(Any, there))
        if there != "delivered":
            with Path(self.context.resolve("shelf")).open("a") as file:
                file.writelines(f"{cast(Any, one.record.after)['i']}\n" for one in staged_records(delivery))
        return self.target_after

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
