"""Dead letters of a pipeline that changes: what each is made of, and who gets it when it is sent again.

P1 to P13 are findings of an audit; the lettered ones came of checking a model of the protocol (``model/changes``).
"""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from engine.edits.edited import LATE, SEVEN, build, numbers, rows_of, run
from engine.edits.tables import MakeTable, Table
from lab.scripted import Script, scripted
from lab.support import Crashes, Lab, destination, processor, source

from conduit_dagster.change_marks import UNCHANGED_TOAST
from conduit_dagster.config.project import Project
from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder, kept
from conduit_dagster.record import Record, envelope
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.tables import dead_letters

pytestmark = pytest.mark.slow


def test_p6_a_replay_brings_nothing_that_the_log_has_brought(lab: Lab) -> None:
    """Also once ``start-from: log`` has been removed from the file."""
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


def refused_by_late(lab: Lab) -> None:
    """Ten records, of which ``late`` has refused one; its file is then removed."""
    lab.write("in.jsonl", rows_of(10))
    build(lab, {**destination("late"), "processors": [SEVEN]}, log="records")
    run(lab)
    (lab.root / "late.jsonl").unlink()


@pytest.mark.parametrize("point", ["", "after-register", "after-reack"])
def test_d_a_letter_that_only_a_removed_destination_missed(lab: Lab, crashes: Crashes, point: str) -> None:
    """A replay does not repeat what the log brings the returning destination."""
    refused_by_late(lab)
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
    """The letter was closed when the destination left; if it is refused again, the record must not get lost."""
    refused_by_late(lab)
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


@pytest.mark.parametrize("at_once", [True, False])
def test_e_a_letter_that_every_destination_has_from_the_log(lab: Lab, at_once: bool) -> None:
    """The destination without it has left the file, the other one caught up on it: a replay sends it to nobody."""
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
        assert error.code == "dead_letters.none"  # it may be closed by then, or go to no destination
    assert numbers(lab, "late") == list(range(10))


@pytest.fixture
def picky(lab: Lab, make_table: MakeTable, crashes: Crashes) -> Table:
    """A step of 0 1 2 4 5 6 is prepared for a table that does not accept 4."""
    table = make_table("id int PRIMARY KEY CHECK (id <> 4)")
    lab.write("in.jsonl", rows_of(7, "id"))
    without(lab, table, 3)
    crashes(lab, "after-prepare")
    return table


def without(lab: Lab, table: Table, dropped: int) -> None:
    build(lab, source(), table.destination(), processors=[processor("f", "filter", f"after.id == {dropped}")])


def refused_of(lab: Lab) -> tuple[dict[str, Any], Any]:
    """The only dead letter's failed record; and the original in the archive, if any."""
    (document,) = lab.documents("dead.jsonl")
    with lab.store() as database, database.connect() as connection:
        (row,) = connection.execute(sa.select(dead_letters)).mappings()
    assert (row["offset"], row["state"], row["node"]) == (4, "open", "p:out")
    failed = document["payload"]["after"]
    assert base64.b64decode(failed["position"]).decode() in row["position"]
    return failed["payload"]["after"], original_of(lab)


def original_of(lab: Lab) -> Any:
    """The archive's copy of the only dead letter's record, as its source gave it; None if it has none."""
    with lab.store() as database, database.connect() as connection:
        (row,) = connection.execute(sa.select(dead_letters)).mappings()
    archive = Archive(archive_folder(Project.find(lab.root, lab.env).log_url, "p"))
    (letter,) = archive.letters(row["part"], [row["line"]])
    return kept(letter.original).after if letter.original else None


def move_away(lab: Lab) -> None:
    """Move the source's file out of its folder, where it would be found."""
    (lab.root / "away").mkdir()
    (lab.root / "in.jsonl").rename(lab.root / "away" / "in.jsonl")


@pytest.mark.parametrize("change", ["filter", "gone", "other"])
def test_p7_p8_the_letter_is_made_of_what_was_staged(lab: Lab, picky: Table, change: str) -> None:
    """It is that of the refused record, of which only the row is known by then, as text."""
    if change == "filter":
        without(lab, picky, 4)
    else:
        move_away(lab)
    if change == "other":
        lab.write("in.jsonl", [{"id": i} for i in range(10, 17)])
    lab.run()
    assert picky.values() == [0, 1, 2, 5, 6, *(range(10, 17) if change == "other" else ())]
    failed, original = refused_of(lab)
    assert failed == {"id": "4"}
    # other code can't tell whether the source's record is the staged one
    assert original is None


def test_the_letter_still_says_what_kind_of_change_it_was(lab: Lab, make_table: MakeTable, crashes: Crashes) -> None:
    """Sent again like any other update, it would insert a row with missing values."""
    table = make_table("id int PRIMARY KEY, a text, b text")
    metadata = {UNCHANGED_TOAST: "b"}
    record = Record(0, metadata, {"id": 4, "a": "x"}, {"id": 4}, operation="update")
    lab.write("in.jsonl", [msgspec.to_builtins(envelope(record))])
    build(lab, source(), table.destination(), processors=[processor("unwrap", "unwrap.opencdc")])
    crashes(lab, "after-prepare")
    move_away(lab)
    lab.run()
    (document,) = lab.documents("dead.jsonl")
    failed = document["payload"]["after"]
    assert (failed["operation"], failed["payload"]["after"]) == ("update", {"id": "4", "a": "x"})
    assert failed["metadata"][UNCHANGED_TOAST] == "b"
    assert table.values() == []


def test_p7_where_nothing_has_changed_the_letter_holds_the_whole_record(lab: Lab, picky: Table) -> None:
    run(lab)
    assert picky.values() == [0, 1, 2, 5, 6]
    assert refused_of(lab) == ({"id": 4}, b'{"id": 4}')


@pytest.mark.parametrize("change", ["", "code", "bytes"])
def test_p7_the_original_of_a_record_that_is_staged_whole(
    lab: Lab, crashes: Crashes, script: Script, change: str
) -> None:
    """As in a letter of which only the row is known: it is there if source and code give what was prepared."""
    script.says(refuse=[3])
    # far from both ends of the file, whose bytes are compared when it is read again
    lines = [{"i": i, "text": "x" * 200} for i in range(7)]
    lab.write("in.jsonl", lines)
    build(lab, source(), scripted(), strategy="at-least-once")
    crashes(lab, "after-prepare")
    if change == "code":
        last = [processor("f", "filter", "after.i == 5")]
        build(lab, source(), scripted(), processors=last, strategy="at-least-once")
    if change == "bytes":
        lines[3]["text"] = "y" * 200
        with (lab.root / "in.jsonl").open("r+") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    run(lab)
    (document,) = lab.documents("dead.jsonl")
    assert document["payload"]["after"]["payload"]["after"] == {"i": 3, "text": "x" * 200}
    assert original_of(lab) == (None if change else json.dumps(lines[3]).encode())
