"""A pipeline that reads another one's output: ``p`` reads what the destination ``first`` of ``a`` has published."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.chain_lab import chained, downstream, runs, upstream
from lab.kills import crashing
from lab.support import DECODE, Crashes, Lab, destination, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state import store
from conduit_dagster.state.database import reading
from conduit_dagster.state.tables import deliveries

pytestmark = pytest.mark.slow

ROWS = [{"i": i} for i in range(100)]
SETTINGS: dict[str, dict[str, str]] = {
    "file": {"path": "./first.jsonl", "sdk.record.format": "payload/json"},
    "folder": {"path": "./first/", "sdk.record.format": "payload/json"},
}


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


def writes(lab: Lab, settings: dict[str, str] | None = None, **delivery: Any) -> None:
    """The pipeline ``a``, without a log of records, whose steps have thirty records."""
    delivery = {"log": "positions", "batch-size": 30, **delivery}
    written = destination("first", settings=settings or SETTINGS["file"])
    upstream(lab, source(), written, processors=[DECODE], delivery=delivery)


def reads(lab: Lab, **more: Any) -> None:
    more.setdefault("processors", [])
    downstream(lab, chained(connector="first"), destination("out"), **more)


@pytest.mark.parametrize("layout", list(SETTINGS))
def test_it_reads_what_was_published_and_goes_on(lab: Lab, layout: str) -> None:
    writes(lab, SETTINGS[layout])
    reads(lab, delivery={"batch-size": 45})
    runs(lab, "p", "a")
    result = lab.run()
    assert (result.error, result.progress.read, result.progress.steps) == (None, 100, 3)
    assert lab.documents("out.jsonl") == ROWS
    lab.write("in.jsonl", [{"i": 100}], mode="a")
    runs(lab, "a")
    assert lab.run().progress.read == 1
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 100}]
    assert lab.run().progress.read == 0


def test_whole_records_come_as_they_were(lab: Lab) -> None:
    operation = {"id": "op", "plugin": "field.set", "settings": {"field": ".Operation", "value": "update"}}
    upstream(
        lab,
        source(),
        destination("first", settings={"path": "./first.jsonl"}),
        processors=[DECODE, operation],
        delivery={"log": "positions"},
    )
    downstream(lab, chained(connector="first"), destination("out", settings={"path": "./out.jsonl"}), processors=[])
    runs(lab, "a", "p")
    for before, after in zip(lab.documents("first.jsonl"), lab.documents("out.jsonl"), strict=True):
        assert (before["operation"], before["key"], before["payload"]) == (
            after["operation"],
            after["key"],
            after["payload"],
        )
        assert after["metadata"]["file.path"] == "./in.jsonl"
        assert after["metadata"]["conduit.source.connector.id"] == "p:in"


def test_a_templates_lines_come_raw(lab: Lab) -> None:
    written = {"sdk.record.format": "template", "sdk.record.format.options": '{"n": {{ .Payload.After.i }}}'}
    writes(lab, {"path": "./first.txt", **written})
    reads(lab, processors=[DECODE])
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == [{"n": i} for i in range(100)]


@pytest.mark.parametrize("layout", list(SETTINGS))
@pytest.mark.parametrize(
    ("point", "read"),
    [("before-publish:2", 30), ("mid-publish:2", 30), ("after-publish:2", 30), ("after-delivered:2", 60)],
)
def test_never_beyond_what_is_published(lab: Lab, layout: str, point: str, read: int) -> None:
    """An interrupted delivery, or one not yet known to be complete, waits for recovery."""
    writes(lab, SETTINGS[layout])
    reads(lab)
    name, _, passage = point.partition(":")
    with crashing(name, int(passage)):
        lab.run("a")
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS[:read]
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == ROWS


def test_a_torn_tail_is_not_read(lab: Lab) -> None:
    writes(lab)
    reads(lab)
    runs(lab, "a")
    with (lab.root / "first.jsonl").open("a") as file:
        file.write('{"i": 100}\n{"i": 1')
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS


POINTS = (
    "after-register",
    "after-plan",
    "after-stage",
    "after-prepare",
    "mid-publish",
    "after-delivered",
    "after-done",
)


@pytest.mark.parametrize("layout", list(SETTINGS))
@pytest.mark.parametrize("point", POINTS)
def test_after_a_crash_every_record_is_there_once(lab: Lab, crashes: Crashes, layout: str, point: str) -> None:
    writes(lab, SETTINGS[layout])
    reads(lab, delivery={"batch-size": 45})
    runs(lab, "a")
    crashes(lab, point if point == "after-register" else f"{point}:2")
    if point == "after-prepare":
        shutil.rmtree(lab.root / ".conduit" / "staging" / "p")
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS


@pytest.mark.parametrize("change", ["replaced", "removed", "cut", "moved away"])
def test_an_output_that_is_not_what_it_was_is_an_error(lab: Lab, change: str) -> None:
    writes(lab)
    reads(lab)
    runs(lab, "a", "p")
    path = lab.root / "first.jsonl"
    if change == "replaced":
        shutil.copy(path, lab.root / "copy")
        (lab.root / "copy").rename(path)
    elif change == "cut":
        path.write_text('{"i": 0}\n')
    elif change == "removed":
        path.unlink()
    else:
        upstream(lab, source(), destination("other"), delivery={"log": "positions"})
        runs(lab, "a")
        writes(lab)
    result = lab.run()
    assert result.error is not None and result.error.fatal
    assert result.error.code == "chain.output_gone"
    assert lab.documents("out.jsonl") == ROWS


@pytest.mark.parametrize(
    ("batch", "point", "removed", "read"),
    [
        (45, "after-plan:2", 1, 45),
        (45, "after-done", 1, 45),
        (45, "after-plan:2", 2, 45),
        (100, "after-plan", 0, 0),
        (100, "after-plan", 1, 0),
    ],
    ids=["half read", "half read, nothing planned", "the last", "the first", "in the middle"],
)
def test_a_published_folder_that_is_gone_is_not_passed_over(
    lab: Lab, crashes: Crashes, batch: int, point: str, removed: int, read: int
) -> None:
    """The content at a step's end says nothing about what was to be read before it."""
    writes(lab, SETTINGS["folder"])
    reads(lab, delivery={"batch-size": batch})
    runs(lab, "a")
    crashes(lab, point)
    shutil.rmtree(sorted((lab.root / "first").glob("step=*"))[removed])
    result = lab.run()
    assert result.error is not None and result.error.fatal
    assert result.error.code == "chain.output_gone"
    assert lab.documents("out.jsonl") == ROWS[:read]


def test_a_published_folder_that_is_gone_before_a_step_was_planned_over_it(lab: Lab) -> None:
    writes(lab, SETTINGS["folder"])
    reads(lab)
    lab.write("in.jsonl", ROWS[:30])
    runs(lab, "a", "p")
    lab.write("in.jsonl", ROWS[30:60], mode="a")
    runs(lab, "a")
    shutil.rmtree(max((lab.root / "first").glob("step=*")))
    runs(lab, "p")
    lab.write("in.jsonl", ROWS[60:], mode="a")
    runs(lab, "a")
    result = lab.run()
    assert result.error is not None and result.error.code == "chain.output_gone"
    assert "step 2 was published" in str(result.error)
    assert lab.documents("out.jsonl") == ROWS[:30]


def test_a_published_folder_that_is_gone_is_named_however_late_it_is_missed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other pipeline keeps, of its old steps, what a reader has not read yet, and nothing more."""
    monkeypatch.setattr(store, "_KEPT_STEPS", 2)
    writes(lab, SETTINGS["folder"], **{"batch-size": 10})
    reads(lab)
    lab.write("in.jsonl", ROWS[:10])
    runs(lab, "a", "p")
    lab.write("in.jsonl", ROWS[10:], mode="a")
    runs(lab, "a")
    third = sorted((lab.root / "first").glob("step=*"))[2]
    third.rename(lab.root / "kept")
    result = lab.run()
    assert result.error is not None and result.error.code == "chain.output_gone"
    assert "step 3 was published" in str(result.error)
    (lab.root / "kept").rename(third)
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS
    lab.write("in.jsonl", ROWS[:20], mode="a")
    runs(lab, "a")
    with lab.store() as database, reading(database) as connection:
        first = connection.execute(sa.select(sa.func.min(deliveries.c.step)).where(deliveries.c.pipeline == "a"))
        assert first.scalar_one() == 10


def test_published_folders_that_were_read_to_their_end_may_go(lab: Lab) -> None:
    writes(lab, SETTINGS["folder"])
    reads(lab, delivery={"batch-size": 45})
    runs(lab, "a", "p")
    for folder in (lab.root / "first").glob("step=*"):
        shutil.rmtree(folder)
    more = [{"i": i} for i in range(100, 130)]
    lab.write("in.jsonl", more, mode="a")
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == [*ROWS, *more]


def test_a_destination_that_was_removed_and_added_again(lab: Lab, crashes: Crashes) -> None:
    """Its folder goes on, and so does a reader in the middle of a part, once something is published again."""
    writes(lab, SETTINGS["folder"])
    reads(lab, delivery={"batch-size": 45})
    runs(lab, "a")
    crashes(lab, "after-done")
    upstream(lab, source(), destination("other"), processors=[DECODE], delivery={"log": "positions"})
    runs(lab, "a")
    writes(lab, SETTINGS["folder"])
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == ROWS[:45]
    lab.write("in.jsonl", [{"i": 100}], mode="a")
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 100}]


@pytest.mark.parametrize("layout", list(SETTINGS))
def test_an_output_that_is_moved_before_it_was_read(lab: Lab, layout: str) -> None:
    """What was published at the old path is named, and can be read before the reader follows to the new one."""
    old, new = (
        SETTINGS[layout],
        {**SETTINGS[layout], "path": "./new" + SETTINGS[layout]["path"].removeprefix("./first")},
    )
    reads(lab)
    lab.write("in.jsonl", ROWS[:30])
    writes(lab, old)
    runs(lab, "a", "p")
    lab.write("in.jsonl", ROWS[30:60], mode="a")
    runs(lab, "a")
    writes(lab, new)
    lab.write("in.jsonl", ROWS[60:], mode="a")
    runs(lab, "a")
    result = lab.run()
    assert result.error is not None and result.error.fatal
    assert (result.error.code, "/first" in (result.error.place or "")) == ("chain.output_gone", True)
    assert lab.documents("out.jsonl") == ROWS[:30]
    writes(lab, old)
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS[:60]
    writes(lab, new)
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS


def test_an_output_that_is_moved_once_it_was_read(lab: Lab) -> None:
    """The old file may go."""
    reads(lab)
    lab.write("in.jsonl", ROWS[:30])
    writes(lab)
    runs(lab, "a", "p")
    (lab.root / "first.jsonl").unlink()
    writes(lab, {**SETTINGS["file"], "path": "./new.jsonl"})
    lab.write("in.jsonl", ROWS[30:], mode="a")
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == ROWS


@pytest.mark.parametrize("layout", list(SETTINGS))
def test_a_run_ends_once_its_output_is_at_another_path(lab: Lab, layout: str) -> None:
    """The run began with the old path, at which it would wait for ever; the next one reads the new path."""
    reads(lab)
    lab.write("in.jsonl", ROWS[:30])
    writes(lab, SETTINGS[layout])
    runs(lab, "a")
    new = {**SETTINGS[layout], "path": "./new" + SETTINGS[layout]["path"].removeprefix("./first")}

    def move(*_: Any) -> None:
        lab.write("in.jsonl", ROWS[30:60], mode="a")
        runs(lab, "a")
        writes(lab, new)
        lab.write("in.jsonl", ROWS[60:], mode="a")
        runs(lab, "a")

    moves, stop = iter([move]), StopFlag()
    alarm = threading.Timer(60, stop.request)
    alarm.start()
    result = lab.run(drain=False, stop=stop, observe=lambda *_: next(moves, lambda: None)())
    alarm.cancel()
    assert result.error is not None and not result.error.fatal
    assert result.error.code == "chain.output_elsewhere"
    assert "/new" in result.error.message
    assert lab.documents("out.jsonl") == ROWS[:60]
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS


@pytest.mark.parametrize("layout", list(SETTINGS))
def test_lines_are_read_in_the_format_that_they_were_written_in(lab: Lab, crashes: Crashes, layout: str) -> None:
    """Unread ones as well, whatever the file says by now; a step that is published after an edit has the old format."""
    whole = {**SETTINGS[layout], "sdk.record.format": "opencdc/json"}
    reads(lab)
    lab.write("in.jsonl", ROWS[:30])
    writes(lab, SETTINGS[layout])
    runs(lab, "a", "p")
    lab.write("in.jsonl", ROWS[30:60], mode="a")
    with crashing("after-prepare"):
        lab.run("a")
    lab.write("in.jsonl", ROWS[60:], mode="a")
    writes(lab, whole)
    runs(lab, "a")
    lab.write("in.jsonl", [{"i": 100}], mode="a")
    writes(lab, SETTINGS[layout])
    runs(lab, "a")
    writes(lab, whole)
    crashes(lab, "after-prepare")
    shutil.rmtree(lab.root / ".conduit" / "staging" / "p")
    runs(lab, "p")
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 100}]


def test_lines_in_a_format_that_cannot_be_read_back_are_named(lab: Lab) -> None:
    reads(lab)
    writes(lab)
    runs(lab, "a", "p")
    lab.write("in.jsonl", [{"i": 100}], mode="a")
    writes(lab, {**SETTINGS["file"], "sdk.record.format": "debezium/json"})
    runs(lab, "a")
    writes(lab)
    result = lab.run()
    assert result.error is not None and result.error.fatal
    assert (result.error.code, (result.error.place or "").endswith("line 101")) == ("chain.not_readable", True)
    assert lab.documents("out.jsonl") == ROWS


def test_lines_that_are_no_records_are_an_error_with_their_place(lab: Lab) -> None:
    lab.write("first.jsonl", ["not ours"])
    upstream(lab, source(), destination("first", settings={"path": "./first.jsonl"}), delivery={"log": "positions"})
    reads(lab)
    runs(lab, "a")
    result = lab.run()
    assert result.error is not None and result.error.fatal
    assert (result.error.code, (result.error.place or "").endswith("first.jsonl, line 1")) == ("chain.no_record", True)
    assert json.loads(lab.lines("first.jsonl")[1])
