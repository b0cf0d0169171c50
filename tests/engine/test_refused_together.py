"""Records that a destination refuses together: one batch of claims, one transaction, one delivery of dead letters."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from engine.frozen import ledger_plugin
from engine.frozen.ledger_plugin import ledger
from engine.mutants.bench import Acts, Bench
from engine.mutants.verdicts import decided_once, hold, sound
from lab.kills import Crash, crash
from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.sdk import NACKED_TOGETHER
from conduit_dagster.state.tables import dead_letter_parts, dead_letters, deliveries


@pytest.fixture
def bench(tmp_path: Path, spark: SparkSession) -> Iterator[Bench]:
    """A project with a counter as its source and the ledger plugin."""
    made = Bench(tmp_path, spark).set_up()
    yield made
    made.release()


def asked(bench: Lab) -> list[list[int]]:
    """The records of each attempt to publish, except those of the queue."""
    return [json.loads(line) for line in (bench.root / "asked.jsonl").read_text().splitlines()]


def claims(bench: Lab, name: str = "out") -> dict[str, int]:
    """How many hashes the ledger has in each state."""
    with closing(sqlite3.connect(bench.root / f"{name}.ledger")) as connection:
        return dict(connection.execute("SELECT state, count(*) FROM hashes GROUP BY state").fetchall())


def rows(bench: Lab, table: sa.Table, *columns: str) -> list[Any]:
    """Columns of a table of the state store, in order."""
    with bench.store() as database, database.connect() as connection:
        chosen = [table.c[name] for name in columns]
        return [tuple(row) for row in connection.execute(sa.select(*chosen).order_by(*chosen))]


def letters(bench: Lab) -> list[tuple[int, int]]:
    """Number and offset of each row of the index, by number."""
    return rows(bench, dead_letters, "number", "offset")


def test_named_records_are_nacked_together_and_the_others_sent_in_one_go(bench: Bench) -> None:
    """None of them is sent again; one file of the archive and one delivery hold their letters, in record order."""
    bench.build(ledger(), upto=8)
    bench.orders(named=[1, 3, 4, 8])
    result = sound(bench.take())
    assert asked(bench) == [[1, 2, 3, 4, 5, 6, 7, 8], [2, 5, 6, 7]]
    hold(bench.ledger(), [2, 5, 6, 7])
    hold(bench.dead(), [1, 3, 4, 8])
    assert claims(bench) == {"split": 1, "nacked": 4, "delivered": 1}
    assert letters(bench) == [(0, 0), (1, 2), (2, 3), (3, 7)]
    assert rows(bench, dead_letter_parts, "letters", "indexed") == [(4, 4)]
    of_queue = [row for row in rows(bench, deliveries, "consumer", "handled") if row[0] == "dead_letters"]
    assert [handled for _, handled in of_queue if handled] == [4]
    assert (result.progress.nacked, result.progress.dead_lettered, result.progress.acked) == (4, 4, 4)


def test_a_destination_that_names_one_at_a_time_gets_none_of_them_again(bench: Bench) -> None:
    bench.build(ledger())
    bench.orders(reject=[2, 3])
    sound(bench.take())
    assert asked(bench) == [[1, 2, 3, 4], [1], [3, 4], [4]]
    hold(bench.ledger(), [1, 4])
    hold(bench.dead(), [2, 3])


def test_at_most_once_ends_with_the_refused_records_own_error(bench: Bench) -> None:
    """Its code was that of a faulty plugin, `connector.failed`."""
    bench.build(ledger(), strategy="at-most-once")
    bench.orders(named=[2, 3])
    error = bench.take().error
    assert error is not None
    assert (error.code, error.node) == ("ledger.no", "p:out")
    assert error.message == "4 records of step 1 are dropped (at-most-once): no 2"
    hold(bench.ledger(), [])


def test_all_of_a_delivery_may_be_refused(bench: Bench) -> None:
    bench.build(ledger())
    bench.orders(named=[1, 2, 3, 4])
    sound(bench.take())
    assert (asked(bench), bench.ledger()) == ([[1, 2, 3, 4]], [])
    hold(bench.dead(), [1, 2, 3, 4])


def test_a_delivery_of_one_record_is_nacked_without_being_sent_again(bench: Bench) -> None:
    bench.build(ledger(), upto=1)
    bench.orders(named=[1])
    sound(bench.take())
    assert asked(bench) == [[1]]
    hold(bench.dead(), [1])


def test_more_than_a_batch_is_nacked_batch_by_batch(bench: Bench) -> None:
    """Each batch is a delivery of letters of its own, and the rest is tried as one child."""
    count = NACKED_TOGETHER + 5
    refused = [2 * n for n in range(1, count + 1)]
    bench.build(ledger(), upto=2 * count + 1)
    bench.orders(named=refused)
    sound(bench.take())
    hold(bench.ledger(), [2 * n + 1 for n in range(count + 1)])
    hold(bench.dead(), refused)
    assert [len(attempt) for attempt in asked(bench)] == [2 * count + 1, NACKED_TOGETHER, 11, 6]
    assert sorted(rows(bench, dead_letter_parts, "letters")) == [(5,), (NACKED_TOGETHER,)]
    assert [offset + 1 for _, offset in letters(bench)] == refused


def test_the_window_takes_them_in_order_and_those_before_the_first_refused_one_are_recorded(bench: Bench) -> None:
    """Earlier records are delivered, the error names it, and nothing after it is decided."""
    bench.build(ledger(), upto=8, window=(5, 2))
    bench.orders(named=[2, 4, 6, 7])
    result = bench.take()
    assert result.error is not None
    assert (result.error.code, result.error.place) == ("nacks.threshold_exceeded", "in, position 6")
    hold(bench.dead(), [2, 4])
    hold(bench.ledger(), [1, 3, 5])
    assert result.progress.acked == 0
    bench.orders()
    sound(bench.take())
    hold(bench.dead(), [2, 4])
    hold(bench.ledger(), [1, 3, 5, 6, 7, 8])


def test_two_pieces_of_one_record_that_are_refused_together_make_one_letter(bench: Bench) -> None:
    bench.write("plugins/ledger.py", [ledger_plugin.TEXT])
    bench.write("in.jsonl", [{"id": n, "i": [10 * n, 10 * n + 1]} for n in range(1, 4)])
    bench.pipeline(
        connectors=[source(), ledger()],
        processors=[DECODE, processor("pieces", "split", field=".Payload.After.i")],
        delivery={"strategy": "exactly-once"},
        **{"dead-letter-queue": queue()},
    )
    bench.orders(named=[20, 21, 31])
    result = sound(bench.take())
    hold(bench.ledger(), [10, 11, 30])
    hold(bench.dead(), [20, 31])
    assert result.progress.nacked == 2
    assert rows(bench, dead_letters, "number", "missed") == [(0, '["~pieces", "out"]'), (1, '["~pieces", "out"]')]


KILLED = ("before-split", "after-split", "before-claim", "after-claim", "before-nack", "after-nack", "before-child")


@pytest.mark.parametrize("passage", [1, 2])
@pytest.mark.parametrize("point", KILLED)
def test_a_kill_at_any_line_of_a_batch_loses_and_doubles_nothing(bench: Bench, point: str, passage: int) -> None:
    """Between claims and transaction, between transaction and letters, and everywhere else, with the window on."""
    bench.build(ledger(), upto=9, window=(9, 4))
    bench.orders(named=[2, 3, 6, 9])
    # claims: of the whole as split, then of the records as nacked; every other point is passed once
    if passage == 1 or point.endswith("-claim"):
        bench.crashes(point, passage)
    result = bench.take()
    sound(result)
    told = result.progress
    assert (told.read, told.acked, told.nacked, told.dead_lettered, told.delivered) == (9, 5, 4, 4, {"out": 5})
    assert told.nacked_by.total() == 4
    hold(bench.ledger(), [1, 4, 5, 7, 8])
    hold(bench.dead(), [2, 3, 6, 9])
    assert [offset + 1 for _, offset in letters(bench)] == [2, 3, 6, 9]
    assert claims(bench)["nacked"] == 4


@pytest.mark.parametrize("point", ["before-claim", "after-claim", "before-nack", "after-nack", "before-child"])
def test_a_frozen_owner_that_goes_on_later_changes_nothing(bench: Bench, point: str) -> None:
    """Its claims, its transaction and its children arrive after the new owner has decided the same records."""
    bench.build(ledger(), upto=6)
    bench.orders(named=[2, 5])
    bench.overtaken(point)
    sound(bench.take())
    hold(bench.ledger(), [1, 3, 4, 6])
    hold(bench.dead(), [2, 5])
    decided_once(bench.ledger(), bench.dead())


def test_an_owner_frozen_while_it_publishes_finds_the_records_claimed(bench: Bench) -> None:
    """It would deliver all of them: nothing refused them when it began."""
    bench.build(ledger(), upto=6)
    with bench.acting({}):
        old = bench.freeze("mid-publish")
        bench.orders(named=[2, 5])
        sound(bench.take())
        old.thaw()
    sound(bench.take())
    hold(bench.ledger(), [1, 3, 4, 6])
    hold(bench.dead(), [2, 5])


@pytest.mark.parametrize(
    ("point", "passage"), [("before-claim", 2), ("after-claim", 2), ("before-split", 1), ("after-split", 1)]
)
def test_a_piece_is_divided_only_once_it_is_claimed(bench: Bench, point: str, passage: int) -> None:
    """Killed at any line of it while a frozen owner is sending the same piece, which is written or finds the claim."""
    bench.build(ledger())
    bench.orders(bulk=[1])
    assert bench.take().error is not None
    bench.orders()
    with bench.acting({}):
        old = bench.freeze("mid-publish", 2)  # the first half is delivered
        bench.orders(bulk=[3])
        bench.acts = Acts({(point, passage): crash})
        with pytest.raises(Crash):
            bench.take()
        bench.acts = Acts({})
        bench.orders()
        old.thaw()
    sound(bench.take())
    hold(bench.ledger(), [1, 2, 3, 4])


def test_lost_staging_of_letters_that_were_refused_together_is_made_again_from_the_archive(bench: Bench) -> None:
    """Killed before they were published, and their staging is gone: the queue gets the same letters, in order."""
    bench.build(ledger(), upto=4)
    bench.orders(named=[1, 2, 4])
    bench.crashes("after-nack")
    folders = [folder for folder in bench.root.rglob("letter-*") if folder.is_dir()]
    assert folders
    for file in (file for folder in folders for file in folder.iterdir()):
        file.unlink()
    sound(bench.take())
    hold(bench.dead(), [1, 2, 4])
    hold(bench.ledger(), [3])


def test_nacks_of_a_direct_destination_are_recorded_together(lab: Lab, script: Script) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(10)])
    lab.pipeline(
        connectors=[source(), scripted()],
        processors=[DECODE, processor("skip", "filter", "after.i == 4")],
        **{"dead-letter-queue": queue()},
    )
    script.says(refuse=[1, 3, 8, 9])
    assert lab.run().error is None
    assert [after["i"] for _, _, after in lab.letters()] == [1, 3, 8, 9]
    assert rows(lab, dead_letter_parts, "letters") == [(4,)]
