"""The delta destination: however often a delivery is repeated, by whomever, its rows are in the table once."""

from __future__ import annotations

import datetime
import errno
import os
import resource
import secrets
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, TableFeatures, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from pydantic import ValidationError

from conduit_dagster.connectors.base import ConnectorContext, Delivery, WriterTask
from conduit_dagster.connectors.delta import commits, parquet_part
from conduit_dagster.connectors.delta.destination import DeltaDestination
from conduit_dagster.connectors.delta.settings import DeltaDestinationSettings
from conduit_dagster.connectors.delta.table import Table
from conduit_dagster.connectors.registry import find_destination
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.recovery import kill_points
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError


class Crash(BaseException):
    """The process ends here."""


def make(root: Path, connector: str = "out", **settings: str) -> DeltaDestination:
    values = {"path": "table", **{key.replace("_", "-"): value for key, value in settings.items()}}
    context = ConnectorContext("p", connector, str(root), Clock(), "exactly-once")
    return DeltaDestination(DeltaDestinationSettings.model_validate(values), context)


def records(*documents: Any) -> list[Record]:
    return [Record(i, {}, document) for i, document in enumerate(documents)]


def stage(destination: DeltaDestination, step: int, tasks: Sequence[Sequence[Any]], token: str = "t") -> Delivery:
    """A prepared delivery of documents, one part per task."""
    staging = destination.staging("") + f"/{step:012d}-{token}/out"
    parts = []
    for index, documents in enumerate(tasks):
        writer = destination.writer(WriterTask(staging, index, f"{token}{index}"))
        assert list(writer.write(records(*documents))) == []
        part = writer.finish()
        assert part is not None
        parts.append(part)
    target = destination.target(None)
    return Delivery(f"{step:02x}" * 32, step, destination.context.connector, staging, tuple(parts), target)


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"i": value} for value in values]


def refusals(destination: DeltaDestination, *given: Any) -> dict[int, tuple[str, str]]:
    writer = destination.writer(WriterTask(destination.staging("") + "/refused", 0, "r"))
    rows = [value if isinstance(value, Record) else Record(0, {}, value) for value in given]
    found = {refusal.place: (refusal.nack.code, refusal.nack.message) for refusal in writer.write(rows)}
    part = writer.finish()
    assert (part.records if part else 0) == len(given) - len(found)
    return found


def rows(root: Path) -> list[dict[str, Any]]:
    """The table's rows, its files by name: in order."""
    table = DeltaTable(root / "table")
    files = sorted(table.file_uris())
    return [row for file in files for row in pq.read_table(file.removeprefix("file://")).to_pylist()]


def queried(table: Path) -> list[dict[str, Any]]:
    """The table's rows as Delta's own reader gives them, in any order.

    Not by ``to_pyarrow_table``: a process that called it may be aborted at its end (deltalake 1.6, pyarrow 26).
    """
    found = QueryBuilder().register("t", DeltaTable(table)).execute("select * from t").read_all()
    return pa.table(found).to_pylist()


def ids(root: Path) -> list[int]:
    return [row["i"] for row in rows(root)]


def at(point: str, monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Runs ``action`` at the first passage of a kill point only."""
    left = [action]
    monkeypatch.setattr(kill_points, "hook", lambda name, _: left.pop()() if name == point and left else None)


def crash() -> None:
    raise Crash


def test_the_name_in_a_pipeline_file_finds_it() -> None:
    assert find_destination("builtin:delta", {}) is DeltaDestination


def test_deliveries_follow_each_other(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.check()
    for step, tasks in ((1, [numbers(1, 2), numbers(3)]), (2, [numbers(4)])):
        delivery = stage(destination, step, tasks)
        assert not destination.holds(delivery)
        assert destination.publish(delivery) == delivery.target
        assert destination.holds(delivery)
    assert ids(tmp_path) == [1, 2, 3, 4]
    assert sorted(row["i"] for row in queried(tmp_path / "table")) == [1, 2, 3, 4]
    assert DeltaTable(tmp_path / "table").count() == 4


def test_nothing_is_visible_before_publish(tmp_path: Path) -> None:
    """A new table is made while staging, and is empty."""
    stage(make(tmp_path), 1, [numbers(1, 2)])
    assert ids(tmp_path) == []


def test_a_repeat_commits_nothing(tmp_path: Path) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1, 2), numbers(3)])
    destination.publish(delivery)
    version = DeltaTable(tmp_path / "table").version()
    destination.publish(delivery)
    make(tmp_path).publish(delivery)
    assert destination.settled(delivery) == delivery.target
    assert DeltaTable(tmp_path / "table").version() == version
    assert ids(tmp_path) == [1, 2, 3]


def test_a_repeat_needs_no_staging(tmp_path: Path) -> None:
    """The engine removes it once the step is done."""
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    destination.publish(delivery)
    for path in Path(delivery.staging).iterdir():
        path.unlink()
    destination.publish(delivery)
    assert destination.holds(delivery)
    assert ids(tmp_path) == [1]


@pytest.mark.parametrize("step", [1, 2])
def test_many_publishers_of_one_delivery_commit_it_once(tmp_path: Path, step: int) -> None:
    """All pass the check before any commits; step 2 has a transaction of step 1 before it."""
    if step == 2:
        make(tmp_path).publish(stage(make(tmp_path), 1, [numbers(0)]))
    delivery = stage(make(tmp_path), step, [numbers(1, 2), numbers(3)])
    barrier = threading.Barrier(4)
    destinations = [make(tmp_path) for _ in range(4)]
    before = DeltaTable(tmp_path / "table").version()
    errors: list[BaseException] = []

    def run(destination: DeltaDestination) -> None:
        try:
            destination.publish(delivery)
        except BaseException as error:  # noqa: BLE001  # a thread's error must fail the test
            errors.append(error)

    kill, kill_points.hook = kill_points.hook, lambda name, _: barrier.wait(30) and None
    try:
        threads = [threading.Thread(target=run, args=(d,)) for d in destinations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        kill_points.hook = kill
    assert errors == []
    assert DeltaTable(tmp_path / "table").version() == before + 1
    assert ids(tmp_path) == [0, 1, 2, 3][2 - step :]


def test_a_frozen_owner_thaws_after_its_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked at the table before, and commits after, another owner's commit of the same and of later steps."""
    delivery = stage(make(tmp_path), 1, [numbers(1)])

    def meanwhile() -> None:
        successor = make(tmp_path)
        successor.publish(delivery)
        successor.publish(stage(successor, 2, [numbers(2)]))

    at("mid-publish", monkeypatch, meanwhile)
    with pytest.raises(FatalError) as raised:
        make(tmp_path).publish(delivery)
    assert raised.value.code == "delta.transaction_taken"
    assert ids(tmp_path) == [1, 2]


def test_a_crash_between_files_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The placed files are seen by nobody, and are the ones that the repeat commits."""
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1), numbers(2)])
    at("mid-publish", monkeypatch, crash)
    with pytest.raises(Crash):
        destination.publish(delivery)
    placed = sorted((tmp_path / "table").glob("*.parquet"))
    assert len(placed) == 2
    assert ids(tmp_path) == []
    assert not make(tmp_path).holds(delivery)
    make(tmp_path).publish(delivery)
    assert ids(tmp_path) == [1, 2]
    assert sorted((tmp_path / "table").glob("part*")) == placed


@pytest.mark.parametrize("torn", [lambda whole: whole[:9], lambda whole: bytes(len(whole))])
def test_a_torn_file_of_a_crash_is_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: Any) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    at("mid-publish", monkeypatch, crash)
    with pytest.raises(Crash):
        destination.publish(delivery)
    placed = next((tmp_path / "table").glob("*.parquet"))
    whole = placed.read_bytes()
    placed.unlink()
    placed.write_bytes(torn(whole))
    destination.publish(delivery)
    assert ids(tmp_path) == [1]


def test_a_staged_part_that_was_cut_is_named(tmp_path: Path) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    os.truncate(Path(delivery.staging, delivery.parts[0].name), 10)
    with pytest.raises(FatalError) as raised:
        destination.publish(delivery)
    assert raised.value.code == "delivery.staging_damaged"
    assert ids(tmp_path) == []


def test_commits_of_others_in_between_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = make(tmp_path)
    first, second = stage(destination, 1, [numbers(1)]), stage(destination, 2, [numbers(2)])

    def foreign() -> None:
        write_deltalake(tmp_path / "table", pa.table({"i": [100]}), mode="append")

    for delivery in (first, second):
        at("mid-publish", monkeypatch, foreign)
        destination.publish(delivery)
    assert sorted(row["i"] for row in queried(tmp_path / "table")) == [1, 2, 100, 100]


def test_a_table_where_others_are_always_faster_is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the table is followed by a foreign commit: the tries are bounded, nothing is in."""
    monkeypatch.setattr(commits, "ATTEMPTS", 3)
    destination, opened = make(tmp_path), Table.open
    delivery = stage(destination, 1, [numbers(1)])

    def look(self: Table) -> DeltaTable | None:
        table = opened(self)
        write_deltalake(tmp_path / "table", pa.table({"i": [100]}), mode="append")
        return table

    with monkeypatch.context() as patch:
        patch.setattr(Table, "open", look)
        with pytest.raises(TransientError) as raised:
            destination.publish(delivery)
    assert raised.value.code == "delta.contended"
    assert not destination.holds(delivery)
    destination.publish(delivery)
    assert destination.holds(delivery)


def test_two_pipelines_and_two_connectors_share_a_table(tmp_path: Path) -> None:
    """Same step, other consumer: another transaction."""
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    assert one.owned is None
    assert one.address == two.address == str(tmp_path / "table")
    for destination, number in ((one, 1), (two, 2)):
        destination.publish(stage(destination, 1, [numbers(number)]))
    assert sorted(ids(tmp_path)) == [1, 2]


def test_late_dead_letters_of_one_step_are_deliveries_of_their_own(tmp_path: Path) -> None:
    destination = make(tmp_path)
    letters = [
        replace(stage(destination, 5, [numbers(n)], f"t{n}"), hash=f"{n:02x}" * 32, skip=n * (1 << 40))
        for n in (0, 1, 2)
    ]
    for delivery in [*letters, *letters]:
        destination.publish(delivery)
    assert sorted(ids(tmp_path)) == [0, 1, 2]
    assert all(destination.holds(delivery) for delivery in letters)


def test_state_that_was_lost_drops_nothing_silently(tmp_path: Path) -> None:
    """The same step under another hash, and a lower one, are refused, until the destination has a name of its own."""
    destination = make(tmp_path)
    destination.publish(stage(destination, 3, [numbers(1)]))
    for step in (3, 1):
        anew = replace(stage(destination, step, [numbers(2)], "anew"), hash="ee" * 32)
        for ask in (destination.holds, destination.publish):
            with pytest.raises(FatalError) as raised:
                ask(anew)
            assert raised.value.code == "delta.transaction_taken"
            assert "app-id" in str(raised.value.fix)
    make(tmp_path, app_id="second").publish(anew)
    assert sorted(ids(tmp_path)) == [1, 2]


def test_what_was_compacted_vacuumed_and_checkpointed_is_still_held(tmp_path: Path) -> None:
    """Also when the log entry itself is gone."""
    destination = make(tmp_path)
    delivery, other = stage(destination, 1, [numbers(1), numbers(2)]), stage(destination, 2, [numbers(3)])
    destination.publish(delivery)
    table = DeltaTable(tmp_path / "table")
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    DeltaTable(tmp_path / "table").create_checkpoint()
    log = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
    for entry in log[:-1]:
        entry.unlink()
    assert make(tmp_path).holds(delivery)
    make(tmp_path).publish(delivery)
    assert sorted(row["i"] for row in queried(tmp_path / "table")) == [1, 2]
    destination.publish(other)  # vacuum left the staging folder alone
    assert sorted(row["i"] for row in queried(tmp_path / "table")) == [1, 2, 3]


def test_checkpoints_come_by_themselves(tmp_path: Path) -> None:
    destination = make(tmp_path)
    table = Table(str(tmp_path / "table")).create(pa.schema([("i", pa.int64())]))
    for version in range(98):
        properties = CommitProperties(app_transactions=[Transaction("x", version)])
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        table = DeltaTable(tmp_path / "table")
    destination.publish(stage(destination, 1, [numbers(1)]))
    assert (tmp_path / "table" / "_delta_log" / "_last_checkpoint").is_file()
    assert make(tmp_path).holds(stage(destination, 1, [numbers(1)], "again"))
    destination.publish(stage(destination, 2, [numbers(2)]))
    assert ids(tmp_path) == [1, 2]


def test_tasks_that_race_for_a_new_table_make_one(tmp_path: Path) -> None:
    """All go by the columns of the first."""
    for attempt in range(10):
        table = Table(str(tmp_path / f"t{attempt}"))
        barrier, made = threading.Barrier(4), []

        def run(name: str, table: Table = table, barrier: threading.Barrier = barrier, made: Any = made) -> None:
            barrier.wait(30)
            made.append(table.create(pa.schema([(name, pa.int64())])).schema().to_json())

        threads = [threading.Thread(target=run, args=(f"c{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 4
        assert len(set(made)) == 1
        assert DeltaTable(table.uri).version() == 0


def test_values_arrive_as_they_are(tmp_path: Path) -> None:
    """Unicode, null, missing, nested, big and small numbers."""
    documents = [
        {"i": 2**63 - 1, "s": "ü\0😀\n", "f": 1, "b": True, "n": {"x": [1, None], "y": {"z": "a"}}, "l": [{"k": 1}]},
        {"i": -(2**63), "s": "", "f": 0.1, "b": None, "n": {"x": []}, "l": [], "null": None},
        {"i": None, "s": None, "n": None},
        {"i": 0},
    ]
    destination = make(tmp_path)
    destination.publish(stage(destination, 1, [documents]))
    assert rows(tmp_path) == [
        {**documents[0], "f": 1.0, "null": None},
        {**documents[1], "n": {"x": [], "y": None}},
        {"i": None, "s": None, "f": None, "b": None, "n": None, "l": None, "null": None},
        {"i": 0, "s": None, "f": None, "b": None, "n": None, "l": None, "null": None},
    ]


def test_an_inferred_field_that_is_only_null_is_a_string(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.publish(stage(destination, 1, [[{"a": None, "b": []}]]))
    destination.publish(stage(destination, 2, [[{"a": "x", "b": ["y"]}]]))
    assert rows(tmp_path) == [{"a": None, "b": []}, {"a": "x", "b": ["y"]}]


def test_named_columns_of_every_type(tmp_path: Path) -> None:
    columns = "l:long, i:integer, h:short, y:byte, d:double, f:float, s:string, b:boolean, day:date, t:timestamp, "
    destination = make(tmp_path, columns=columns + "n:timestamp_ntz, m:decimal(10,2)")
    document = {"l": 1, "i": 2, "h": 3, "y": 4, "d": 5.5, "f": 0.5, "s": "x", "b": False, "day": "2024-02-29"}
    document |= {"t": "2024-01-02T03:04:05.000006+01:00", "n": "2024-01-02T03:04:05", "m": "12.34"}
    destination.publish(stage(destination, 1, [[document, {"day": None}]]))
    row = rows(tmp_path)[0]
    assert row == document | {
        "day": datetime.date(2024, 2, 29),
        "t": datetime.datetime(2024, 1, 2, 2, 4, 5, 6, datetime.UTC),
        "n": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "m": Decimal("12.34"),
    }
    assert DeltaTable(tmp_path / "table").count() == 2


def test_what_does_not_fit_is_refused_by_name_and_the_rest_is_in(tmp_path: Path) -> None:
    destination = make(tmp_path, columns="i:long, s:string, d:double, day:date, m:decimal(4,1)")
    given = [
        {"i": 1, "s": "x"},
        {"i": 2**64},
        {"i": 1.0},
        {"i": "1"},
        {"i": True},
        {"s": 1},
        {"s": {"a": 1}},
        {"d": "1"},
        {"day": "2024-02-30"},
        {"m": "1.23"},
        {"i": 2, "extra": 1},
        {"i": 2, "extra": None},
        {"i": 2, "a b": 1},
        {"i": 3, "d": 2},
        {"s": "\ud800"},
        {},
    ]
    found = refusals(destination, *given)
    assert {place: code for place, (code, _) in found.items()} == {
        **dict.fromkeys(range(1, 10), "delta.does_not_fit"),
        10: "delta.unknown_field",
        11: "delta.unknown_field",
        12: "delta.unknown_field",
        14: "format.invalid",
    }
    assert "field i is 18446744073709551616" in found[1][1]
    assert all(name in found[place][1] for place, name in ((5, "s"), (7, "d"), (8, "day"), (9, "m"), (10, "extra")))


def test_a_refusal_does_not_depend_on_the_neighbours(tmp_path: Path) -> None:
    """One by one and in blocks of any length: the same records are refused."""
    documents: list[Any] = [{"i": n} if n % 7 else {"i": str(n)} for n in range(50)]
    bad = {n for n in range(50) if n % 7 == 0}
    destination = make(tmp_path, columns="i:long")
    for size in (1, 3, 50):
        writer = destination.writer(WriterTask(destination.staging("") + f"/{size}", 0, "r"))
        refused = {
            start + refusal.place
            for start in range(0, 50, size)
            for refusal in writer.write(records(*documents[start : start + size]))
        }
        part = writer.finish()
        assert refused == bad
        assert part is not None
        assert part.records == 50 - len(bad)


def test_nested_misfits_are_named_by_their_path(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.publish(stage(destination, 1, [[{"n": {"x": 1, "l": [{"k": 1}]}}]]))
    found = refusals(
        destination, {"n": {"x": "1"}}, {"n": {"l": [{"k": 1}, {"k": 0.5}]}}, {"n": {"z": 1}}, {"n": 5}, {"n": {}}
    )
    assert {place: message.split(" is ")[0] for place, (_, message) in found.items()} == {
        0: "the field n.x",
        1: "the field n.l[1].k",
        2: "no column for the field n.z",
        3: "the field n",
    }


def test_only_created_and_snapshot_documents_are_appended(tmp_path: Path) -> None:
    given = [Record(0, {}, {"i": 1}, operation=o) for o in ("create", "update", "delete", "snapshot")]
    found = refusals(make(tmp_path), *given, Record(0, {}, b'{"i": 1}'), Record(0, {}, None))
    assert {place: code for place, (code, _) in found.items()} == {
        1: "delta.append_only",
        2: "delta.append_only",
        4: "delta.no_document",
        5: "delta.no_document",
    }
    assert "json.decode" in found[4][1]


def test_unknown_fields_can_be_ignored(tmp_path: Path) -> None:
    destination = make(tmp_path, columns="i:long", unknown_fields="ignore")
    assert set(refusals(destination, {"i": 1, "x": 1}, {"i": "1", "x": 1})) == {1}
    destination.publish(stage(destination, 1, [[{"i": 1, "x": {"y": 1}}, {"y": 2}]]))
    assert rows(tmp_path) == [{"i": 1}, {"i": None}]


def test_required_columns_of_a_table(tmp_path: Path) -> None:
    item = pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.int64())])
    fields = [pa.field("i", pa.int64(), nullable=False), pa.field("n", pa.list_(pa.field("element", item, False)))]
    DeltaTable.create(tmp_path / "table", DeltaSchema.from_arrow(pa.schema(fields)))
    destination = make(tmp_path)
    found = refusals(destination, {"i": 1}, {"i": None}, {}, {"i": 1, "n": [{}]}, {"i": 1, "n": [None]})
    assert {place: code for place, (code, _) in found.items()} == dict.fromkeys((1, 2, 3, 4), "delta.required")
    assert "n[0].x" in found[3][1]
    destination.publish(stage(destination, 1, [[{"i": 1, "n": [{"x": 2}]}, {"i": 2}]]))
    assert rows(tmp_path) == [{"i": 1, "n": [{"x": 2, "y": None}]}, {"i": 2, "n": None}]


def test_a_copy_of_a_project_never_touches_the_files_of_the_other(tmp_path: Path) -> None:
    """It has the same delivery hashes: under the same name its delivery is there, under another it is another one."""
    first, copy = make(tmp_path), make(tmp_path, app_id="copy")
    one, two = stage(first, 1, [numbers(1)]), stage(copy, 1, [numbers(2)], "copy")
    assert one.hash == two.hash
    first.publish(one)
    copy.publish(two)
    assert sorted(ids(tmp_path)) == [1, 2]


def test_columns_that_json_cannot_fill_stay_null(tmp_path: Path) -> None:
    kinds = pa.schema([("i", pa.int64()), ("raw", pa.binary()), ("m", pa.map_(pa.string(), pa.int64()))])
    DeltaTable.create(tmp_path / "table", DeltaSchema.from_arrow(kinds))
    destination = make(tmp_path)
    assert set(refusals(destination, {"i": 1, "raw": "x"}, {"i": 1})) == {0}
    destination.publish(stage(destination, 1, [numbers(1)]))
    assert queried(tmp_path / "table") == [{"i": 1, "raw": None, "m": None}]


def test_a_new_table_of_documents_without_fields_is_not_made(tmp_path: Path) -> None:
    found = refusals(make(tmp_path), {}, {"empty": {}})
    assert {code for code, _ in found.values()} == {"delta.no_columns"}
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))


def test_columns_that_a_table_lacks_are_fatal_before_anything_is_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"i": ["text"]}))
    with pytest.raises(FatalError) as raised:
        make(tmp_path, columns="i:long").check()
    assert raised.value.code == "delta.columns_differ"
    assert "i:int64" in raised.value.message
    make(tmp_path).check()
    assert set(refusals(make(tmp_path), {"i": 1}, {"i": "x"})) == {0}


@pytest.mark.parametrize("why", ["partitioned", "constraints", "features", "required"])
def test_tables_that_it_cannot_append_to_are_named(tmp_path: Path, why: str) -> None:
    path = tmp_path / "table"
    kinds = pa.schema([("i", pa.int64()), ("n", pa.struct([pa.field("x", pa.int64(), nullable=why != "required")]))])
    schema = DeltaSchema.from_arrow(kinds)
    DeltaTable.create(path, schema, partition_by=["i"] if why == "partitioned" else None)
    if why == "constraints":
        DeltaTable(path).alter.add_constraint({"positive": "i > 0"})
    if why == "features":
        DeltaTable(path).alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(FatalError, match=why) as raised:
        make(tmp_path).check()
    assert raised.value.code == "delta.unsupported"


def test_a_table_altered_under_a_prepared_step(tmp_path: Path) -> None:
    """A new column is fine; one of another type is refused with its name, and nothing is in."""
    destination = make(tmp_path)
    first, second = stage(destination, 1, [numbers(1)]), stage(destination, 2, [numbers(2)])
    write_deltalake(tmp_path / "table", pa.table({"i": [0], "new": ["x"]}), mode="append", schema_mode="merge")
    destination.publish(first)
    assert sorted(row["i"] for row in queried(tmp_path / "table")) == [0, 1]
    write_deltalake(tmp_path / "table", pa.table({"i": ["text"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(FatalError, match="the columns i of") as raised:
        destination.publish(second)
    assert raised.value.code == "delta.altered"
    assert not destination.holds(second)


def test_another_path_under_a_prepared_step_is_refused(tmp_path: Path) -> None:
    delivery = stage(make(tmp_path), 1, [numbers(1)])
    for ask in (make(tmp_path, path="other").holds, make(tmp_path, path="other").publish):
        with pytest.raises(FatalError) as raised:
            ask(delivery)
        assert raised.value.code == "delivery.target_changed"


def test_the_same_rows_in_other_blocks_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery stages a lost part again and compares digests; several row groups, with pages of their own inside."""
    monkeypatch.setattr(parquet_part, "ROW_GROUP_BYTES", 4 << 20)
    destination = make(tmp_path, columns="i:long, s:string, n:double")
    documents = [{"i": n, "s": f"{n:x}" * (n % 50), **({"n": n / 3} if n % 3 else {})} for n in range(60_000)]
    parts = []
    for size in (100, 777, 5_000, 60_000):
        writer = destination.writer(WriterTask(destination.staging("") + f"/{size}", 0, "r"))
        for start in range(0, len(documents), size):
            assert not writer.write(records(*documents[start : start + size]))
        parts.append(writer.finish())
    assert len({(part.records, part.bytes, part.sha256) for part in parts if part}) == 1
    read = pq.ParquetFile(Path(destination.staging(""), "777", "00000-r.parquet"))
    assert read.metadata.num_row_groups > 1
    assert read.read()["i"].to_pylist() == list(range(60_000))


def test_a_task_without_rows_has_no_part(tmp_path: Path) -> None:
    writer = make(tmp_path).writer(WriterTask(str(tmp_path / "staging"), 0, "t"))
    assert list(writer.write([])) == []
    assert writer.finish() is None
    writer.abort()
    assert not (tmp_path / "staging").exists()


def test_a_path_that_the_library_takes_for_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FatalError) as raised:
        make(tmp_path, path="a%20b")
    assert raised.value.code == "delta.path"


@pytest.mark.parametrize("name", ["a b", "ü", "50%", "a#b?c"])
def test_paths_of_any_name(tmp_path: Path, name: str) -> None:
    destination = make(tmp_path, path=name)
    destination.publish(stage(destination, 1, [numbers(1)]))
    assert queried(tmp_path / name) == numbers(1)
    assert make(tmp_path, path=f"file://{tmp_path}/{name}").address == destination.address


def test_a_path_that_can_be_no_folder_is_said_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in ("file", "file/table"):
        with pytest.raises(ConduitError) as raised:
            make(tmp_path, path=path).check()
        assert raised.value.code == "file.not_folder"


def test_a_disk_that_takes_no_more_is_an_error_of_the_system(tmp_path: Path) -> None:
    """Here: the limit on a file's size. The engine stops the run with it; no record becomes a nack."""
    destination = make(tmp_path, columns="s:string")
    writer = destination.writer(WriterTask(destination.staging("") + "/full", 0, "t"))
    assert not writer.write(records(*({"s": secrets.token_hex(500)} for _ in range(200))))
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            writer.finish()
        writer.abort()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert raised.value.errno == errno.EFBIG


def test_a_table_that_is_gone_is_fatal(tmp_path: Path) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    (tmp_path / "table" / "_delta_log").rename(tmp_path / "gone")
    assert not destination.holds(delivery)
    with pytest.raises(FatalError) as raised:
        destination.publish(delivery)
    assert raised.value.code == "delta.table_gone"


def test_a_log_that_cannot_be_read_is_one_short_error(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.publish(stage(destination, 1, [numbers(1)]))
    log = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))[-1]
    log.write_text('{"x')
    with pytest.raises(TransientError) as raised:
        destination.check()
    assert raised.value.code == "delta.failed"
    assert "\n" not in raised.value.message


def test_secrets_of_a_url_are_not_shown() -> None:
    assert Table("s3://user:secret@bucket/a/table?token=secret").address == "s3://bucket/a/table"


@pytest.mark.parametrize(
    ("columns", "says"),
    [("i", "name:type"), ("i:int", "unknown type int"), ("a:long,A:long", "twice"), ("a b:long", "can't be called")],
)
def test_columns_that_cannot_be(columns: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DeltaDestinationSettings.model_validate({"path": "t", "columns": columns})
