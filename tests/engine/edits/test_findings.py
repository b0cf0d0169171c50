"""What the delivery core once lost, doubled or could not get past when its pipeline changed, each as a test.

P1 to P13 are findings of an audit; the lettered ones came of checking a model of the protocol (``model/changes``).
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from chain_lab import rewound
from engine.edits.numbered import install, numbered
from engine.edits.tables import Table
from postgres_server import PostgresServer
from pyspark.sql import SparkSession
from support import DECODE, Crashes, Lab, destination, processor, queue, source

from conduit_dagster.commit_log.compaction import Compactor
from conduit_dagster.commit_log.layout import LogFolder
from conduit_dagster.config.project import Project
from conduit_dagster.engine.compiled import DEAD_LETTERS
from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder
from conduit_dagster.engine.dead_letters.kept import kept
from conduit_dagster.engine.operate.rewind import Wish
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.log_store import LogStore
from conduit_dagster.state.offsets import EVERYTHING, set_offsets
from conduit_dagster.state.overview import newest_events
from conduit_dagster.state.schema import dead_letters, steps

LATE = destination("late", **{"start-from": "log"})
MakeTable = Callable[[str], Table]


@pytest.fixture
def make_table(postgres_server: PostgresServer) -> MakeTable:
    """Makes a table of these columns."""
    return lambda columns: Table.create(postgres_server, columns)


def build(lab: Lab, *connectors: Any, processors: Any = (), **delivery: Any) -> None:
    """An exactly-once pipeline; from ``in.jsonl`` to ``out.jsonl`` unless it is given connectors."""
    given = list(connectors or (source(), destination()))
    if all(connector["type"] == "destination" for connector in given):
        given = [source(), destination(), *given]
    lab.pipeline(
        connectors=given,
        processors=[DECODE, *processors],
        delivery={"strategy": "exactly-once", **delivery},
        **{"dead-letter-queue": queue()},
    )


def run(lab: Lab) -> int:
    """Runs to the end; how many records it read."""
    result = lab.run()
    assert result.error is None, (result.error.code, result.error.message)
    return result.progress.read


def numbers(lab: Lab, name: str = "out", field: str = "i") -> list[int]:
    return [row[field] for row in lab.documents(f"{name}.jsonl") if field in row]


def step_states(lab: Lab) -> list[str]:
    with lab.store() as database, database.connect() as connection:
        return list(connection.execute(sa.select(steps.c.state).order_by(steps.c.step)).scalars())


def rows_of(count: int, field: str = "i", **more: Any) -> list[dict[str, Any]]:
    return [{field: i, **more} for i in range(count)]


# -- P1, P2, P3: a destination that starts from the log comes while a step is open ----------------------------------


@pytest.mark.parametrize(
    ("point", "state"), [("after-prepare:3", "prepared"), ("after-publish:3", "prepared"), ("after-plan:3", "planned")]
)
def test_p1_p2_late_destination_under_an_open_step(lab: Lab, crashes: Crashes, point: str, state: str) -> None:
    """It gets everything once and in order: records of the open step neither lost nor before older ones."""
    lab.write("in.jsonl", rows_of(20))
    records = {"log": "records", "batch-size": 5}
    build(lab, **records)
    crashes(lab, point)
    assert step_states(lab) == ["done", "done", state]
    build(lab, LATE, **records)
    run(lab)
    assert numbers(lab) == numbers(lab, "late") == list(range(20))


@pytest.mark.parametrize("point", ["after-plan:3", "after-prepare:3"])
def test_p3_late_destination_under_an_open_step_and_compaction(lab: Lab, crashes: Crashes, point: str) -> None:
    """Compaction takes nothing that the newcomer was promised, neither at once nor after a crash in its catch-up.

    What it is promised is what the log still holds in one piece: ten entries were handled by all and are compacted.
    """
    lab.write("in.jsonl", rows_of(30, pad="x" * 200))
    small = {"log": "records", "batch-size": 5, "log-segment-size": "1KB"}
    build(lab, **small)
    crashes(lab, point)
    build(lab, LATE, **small)
    crashes(lab, "after-register")
    promised = first_promised(lab)
    assert promised < 15
    crashes(lab, "after-done:2")
    run(lab)
    run(lab)
    assert numbers(lab) == list(range(30))
    assert numbers(lab, "late") == list(range(promised, 30))


def first_promised(lab: Lab) -> int:
    with lab.store() as database:
        (event,) = (row["detail"] for row in newest_events(database, "p", 100) if row["event"] == "catch_up")
    return int(event["first"])


@pytest.mark.parametrize("point", ["after-plan", "after-prepare"])
def test_p3_a_step_refuses_a_range_with_a_gap(lab: Lab, crashes: Crashes, point: str) -> None:
    """Entries that it reads are compacted before their time: it stops, and does not pass them over."""
    lab.write("in.jsonl", rows_of(20))
    build(lab, log="records", **{"batch-size": 10})
    run(lab)
    lab.write("in.jsonl", [{"i": i} for i in range(20, 25)], mode="a")
    build(lab, log="records", **{"batch-size": 10, "log-segment-size": "1B"})
    crashes(lab, "after-log")  # the segment of the first twenty is closed, and not compacted yet
    rewound(lab, "p", "in", Wish("start"))
    crashes(lab, point)
    shutil.rmtree(lab.root / ".conduit" / "staging" / "p")
    assert compacted_as_if_all_were_handled(lab) == 19
    result = lab.run()
    assert result.error is not None
    assert (result.error.code, result.error.fatal) == ("log.gap", True)
    assert "lacks offset 0;" in result.error.message
    assert numbers(lab) == list(range(20))


def compacted_as_if_all_were_handled(lab: Lab) -> int:
    """What compaction would take were the offsets of all consumers at the end of the log; how many entries went."""
    project, log = Project.find(lab.root, lab.env), LogStore("p")

    with lab.store() as database, database.begin() as connection:
        for consumer in ("out", DEAD_LETTERS):
            set_offsets(connection, "p", consumer, "in", {EVERYTHING: 24}, 0)
        return (
            Compactor(LogFolder(project.log_url, "p", "in"), log, lambda work: work(connection))
            .compact(["out", DEAD_LETTERS])
            .entries
        )


# -- P4 and (a), (b): a source that means other data, and other positions ------------------------------------------


@pytest.fixture
def units(lab: Lab) -> Lab:
    """Three records each of a, b and c, to be read by a source whose positions are plain numbers."""
    install(lab)
    for data in "abc":
        lab.write(f"{data}.jsonl", [{"id": f"{data}{i}"} for i in range(3)])
    return lab


@pytest.mark.parametrize("log", ["positions", "records"])
def test_p4_a_generation_is_never_given_twice(units: Lab, make_table: MakeTable, log: str) -> None:
    """A, B, A, C: the hashes of C are not those of B, under which the table would take its records for delivered."""
    table = make_table("id text")
    for data in "abac":
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    assert table.values() == ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]


@pytest.mark.parametrize("log", ["positions", "records"])
def test_p4_nor_is_one_of_a_source_that_was_removed_or_rewound(units: Lab, make_table: MakeTable, log: str) -> None:
    """A, B, rewound; the source leaves the file and comes back as A, then as C."""
    table, other = make_table("id text"), {**source("./other.jsonl"), "id": "other"}
    units.write("other.jsonl", [])
    for data in "ab":
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    rewound(units, "p", "in", Wish("start"))
    run(units)
    build(units, other, table.destination(), log=log)
    run(units)
    for data in "ac":
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    a, b, c = ([f"{data}{i}" for i in range(3)] for data in "abc")
    # a source that is read through its log is rewound in the log, which holds both
    again = [*a, *b] if log == "records" else b
    assert table.values() == [*a, *b, *again, *c]


def test_a_offsets_and_positions_never_share_a_hash(units: Lab, make_table: MakeTable) -> None:
    """Were a range of the log's offsets named as a range of A's positions is, the table would have the latter."""
    table = make_table("id text")
    for data, log in (("b", "positions"), ("a", "records"), ("a", "positions")):
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    units.write("a.jsonl", [{"id": f"a{i}"} for i in range(3, 6)], mode="a")
    run(units)
    assert table.values() == ["b0", "b1", "b2", *(f"a{i}" for i in range(6))]


def test_b_another_unit_and_no_log_any_more_in_one_edit(units: Lab, make_table: MakeTable) -> None:
    """C is read from its beginning; and A, where it is back, from where A stood: not from its offset in the log."""
    table = make_table("id text")
    for data, log in (("b", "positions"), ("a", "records"), ("c", "positions")):
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    assert table.values() == [f"{data}{i}" for data in "bac" for i in range(3)]
    units.write("a.jsonl", [{"id": f"a{i}"} for i in range(3, 8)], mode="a")
    build(units, numbered("a"), table.destination(), log="positions")
    run(units)
    assert table.values()[9:] == [f"a{i}" for i in range(3, 8)]


def test_b_another_unit_and_no_log_any_more_under_a_prepared_step(
    units: Lab, make_table: MakeTable, crashes: Crashes
) -> None:
    table = make_table("id text")
    build(units, numbered("a"), table.destination(), log="records")
    crashes(units, "after-prepare")
    build(units, numbered("b"), table.destination(), log="positions")
    run(units)
    assert table.values() == ["a0", "a1", "a2", "b0", "b1", "b2"]


# -- P5 and P13: the same data again -----------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("point", ["after-plan:2", "after-prepare:2", "after-publish:2"])
def test_p5_another_source_under_an_open_step_and_back(lab: Lab, crashes: Crashes, point: str, log: str) -> None:
    lab.write("a.jsonl", rows_of(20, "a"))
    lab.write("b.jsonl", rows_of(3, "b"))
    settings = {"log": log, "batch-size": 5}
    build(lab, source("./a.jsonl"), destination(), **settings)
    crashes(lab, point)
    for path in ("./b.jsonl", "./a.jsonl"):
        build(lab, source(path), destination(), **settings)
        run(lab)
    assert numbers(lab, field="a") == list(range(20))
    assert numbers(lab, field="b") == list(range(3))


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_p13_a_slip_that_is_mended(lab: Lab, log: str, meanwhile: bool) -> None:
    """The source goes on where it was, whether or not the slip named a file that is there."""
    lab.write("in.jsonl", rows_of(5))
    if meanwhile:
        lab.write("im.jsonl", [{"i": 100}])
    build(lab, log=log)
    run(lab)
    build(lab, source("./im.jsonl"), destination(), log=log)
    assert lab.run().progress.read == (1 if meanwhile else 0)
    lab.write("in.jsonl", [{"i": 5}], mode="a")
    build(lab, log=log)
    assert run(lab) == 1
    assert numbers(lab) == [*range(5), *([100] if meanwhile else []), 5]


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("point", ["", "after-plan:2", "after-prepare:2", "after-publish:2"])
def test_p13_a_project_that_is_moved(
    tmp_path: Path, spark: SparkSession, crashes: Crashes, log: str, point: str
) -> None:
    """It goes on where it was, with the step that was open."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    lab = Lab(here, spark)
    lab.write("in.jsonl", rows_of(10))
    build(lab, log=log, **{"batch-size": 5})
    if point:
        crashes(lab, point)
    else:
        run(lab)
    lab.root = here.rename(there)
    lab.write("in.jsonl", [{"i": 10}], mode="a")
    run(lab)
    assert numbers(lab) == list(range(11))
    assert run(lab) == 0


# -- P6, (c), (d): a destination that comes and goes -------------------------------------------------------------

SEVEN = processor("bad", "error", "after.i == 7", message="no")


def test_p6_a_replay_brings_nothing_that_the_log_has_brought(lab: Lab) -> None:
    """Also once ``start-from: log`` has left the file."""
    lab.write("in.jsonl", rows_of(10))
    build(lab, processors=[SEVEN], log="records")
    run(lab)
    build(lab, LATE, log="records")
    run(lab)
    build(lab, destination("late"), log="records")
    run(lab)
    assert lab.replay()["replayed"] == 1
    assert numbers(lab, "late") == list(range(10))
    assert numbers(lab) == [*range(7), 8, 9, 7]


ENDING = (
    "after-reack", "before-publish", "after-publish", "after-delivered", "before-done",
    "after-done", "after-ack", "after-register",
)  # fmt: skip


@pytest.mark.parametrize("then", ENDING)
@pytest.mark.parametrize("point", ["after-plan", "after-prepare"])
def test_c_removed_under_an_open_step_and_put_back_from_the_log(
    lab: Lab, crashes: Crashes, point: str, then: str
) -> None:
    """The step ends without it; the run is killed before or after that; put back, it gets everything once."""
    lab.write("in.jsonl", rows_of(20))
    settings = {"log": "records", "batch-size": 5}
    build(lab, **settings)
    crashes(lab, "after-done")
    build(lab, destination("late"), **settings)
    crashes(lab, point)
    build(lab, **settings)
    crashes(lab, then)
    build(lab, LATE, **settings)
    run(lab)
    assert numbers(lab) == numbers(lab, "late") == list(range(20))


@pytest.mark.parametrize("point", ["after-plan", "after-prepare"])
def test_c_put_back_before_it_was_retired(lab: Lab, crashes: Crashes, point: str) -> None:
    """A run that is killed before it retires anything changes nothing: the destination is none that comes back."""
    lab.write("in.jsonl", rows_of(20))
    settings = {"log": "records", "batch-size": 5}
    build(lab, **settings)
    crashes(lab, "after-done")
    build(lab, destination("late"), **settings)
    crashes(lab, point)
    build(lab, **settings)
    crashes(lab, "after-fence")
    build(lab, LATE, **settings)
    run(lab)
    assert numbers(lab) == list(range(20))
    assert numbers(lab, "late") == list(range(5, 20))


@pytest.mark.parametrize("point", ["", "after-register", "after-reack"])
def test_d_a_letter_that_only_a_removed_destination_missed(lab: Lab, crashes: Crashes, point: str) -> None:
    """What the log brings the destination when it is back, a replay does not bring it once more."""
    lab.write("in.jsonl", rows_of(10))
    build(lab, {**destination("late"), "processors": [SEVEN]}, log="records")
    run(lab)
    (lab.root / "late.jsonl").unlink()
    assert letter_states(lab) == ["open"]
    build(lab, log="records")
    if point:
        crashes(lab, point)
    else:
        run(lab)
    build(lab, LATE, log="records")
    run(lab)
    with pytest.raises(FatalError) as refused:
        lab.replay()
    assert refused.value.code == "dead_letters.none"
    assert numbers(lab) == numbers(lab, "late") == list(range(10))


def test_d_it_is_an_open_letter_again_where_the_destination_refuses_it_again(lab: Lab) -> None:
    """The letter was closed when the destination left; once more refused, the record must not be nowhere."""
    lab.write("in.jsonl", rows_of(10))
    build(lab, {**destination("late"), "processors": [SEVEN]}, log="records")
    run(lab)
    (lab.root / "late.jsonl").unlink()
    build(lab, log="records")
    run(lab)
    build(lab, {**LATE, "processors": [SEVEN]}, log="records")
    run(lab)
    assert numbers(lab, "late") == [*range(7), 8, 9]
    build(lab, LATE, log="records")
    assert lab.replay()["replayed"] == 1
    assert numbers(lab, "late") == [*range(7), 8, 9, 7]
    assert numbers(lab) == list(range(10))


def letter_states(lab: Lab) -> list[str]:
    with lab.store() as database, database.connect() as connection:
        return list(connection.execute(sa.select(dead_letters.c.state)).scalars())


# -- P7, P8: a record is refused that was prepared by other code, or whose source is gone ---------------------------


@pytest.fixture
def picky(lab: Lab, make_table: MakeTable, crashes: Crashes) -> Table:
    """A step of 0 1 2 4 5 6 is prepared for a table that takes no 4."""
    table = make_table("id int PRIMARY KEY CHECK (id <> 4)")
    lab.write("in.jsonl", rows_of(7, "id"))
    without(lab, table, 3)
    crashes(lab, "after-prepare")
    return table


def without(lab: Lab, table: Table, dropped: int) -> None:
    build(lab, source(), table.destination(), processors=[processor("f", "filter", f"after.id == {dropped}")])


def refused_of(lab: Lab) -> tuple[dict[str, Any], Any]:
    """The only dead letter's failed record; and the original that the archive has of it, if any."""
    (document,) = lab.documents("dead.jsonl")
    with lab.store() as database, database.connect() as connection:
        (row,) = connection.execute(sa.select(dead_letters)).mappings()
    assert (row["offset"], row["state"], row["node"]) == (4, "open", "p:out")
    failed = document["payload"]["after"]
    assert base64.b64decode(failed["position"]).decode() in row["position"]
    archive = Archive(archive_folder(Project.find(lab.root, lab.env).log_url, "p"))
    (letter,) = archive.letters(row["part"], [row["line"]])
    return failed["payload"]["after"], kept(letter.original).after if letter.original else None


@pytest.mark.parametrize("change", ["filter", "gone", "other"])
def test_p7_p8_the_letter_is_made_of_what_was_staged(lab: Lab, picky: Table, change: str) -> None:
    """It is that of the record that was refused, of which only the row is known by then, as text."""
    if change == "filter":
        without(lab, picky, 4)
    else:
        (lab.root / "in.jsonl").rename(lab.root / "moved-away")
    if change == "other":
        lab.write("in.jsonl", [{"id": i} for i in range(10, 17)])
    lab.run()
    assert picky.values() == [0, 1, 2, 5, 6, *(range(10, 17) if change == "other" else ())]
    failed, original = refused_of(lab)
    assert failed == {"id": "4"}
    # the source has it still where only a filter was changed
    assert original == (b'{"id": 4}' if change == "filter" else None)


def test_p7_where_nothing_has_changed_the_letter_holds_the_whole_record(lab: Lab, picky: Table) -> None:
    run(lab)
    assert picky.values() == [0, 1, 2, 5, 6]
    assert refused_of(lab) == ({"id": 4}, b'{"id": 4}')


# -- found while these tests were written ---------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False])
def test_e_a_letter_that_every_destination_has_from_the_log(lab: Lab, at_once: bool) -> None:
    """The destination that lacks it has left the file, the other one caught up on it: a replay sends it to nobody."""
    lab.write("in.jsonl", rows_of(10))
    build(lab, processors=[SEVEN], log="records")
    run(lab)
    if not at_once:
        build(lab, LATE, log="records")
        run(lab)
    build(lab, source(), LATE, log="records")
    run(lab)
    assert numbers(lab, "late") == list(range(10))
    try:
        lab.replay()
    except FatalError as error:
        assert error.code == "dead_letters.none"  # it may be closed by then, or be sent to nobody
    assert numbers(lab, "late") == list(range(10))


@pytest.mark.parametrize("point", ["after-reack", "before-publish", "after-done"])
def test_f_one_that_is_put_back_without_the_log_was_sent_nothing_by_it(lab: Lab, crashes: Crashes, point: str) -> None:
    """Whatever it was sent before it was retired is another one's: a replay brings it the letter of that time."""
    lab.write("in.jsonl", rows_of(10))
    build(lab, processors=[SEVEN], log="records")
    run(lab)
    build(lab, source(), destination(), LATE, processors=[SEVEN], log="records")
    run(lab)
    lab.write("in.jsonl", [{"i": 10}], mode="a")
    crashes(lab, "after-prepare")
    build(lab, log="records")
    crashes(lab, point)
    build(lab, source(), destination(), destination("late", "./again.jsonl"), log="records")
    run(lab)
    lab.replay()
    assert numbers(lab, "again") == [7]
    assert sorted(numbers(lab, "out")) == list(range(11))
