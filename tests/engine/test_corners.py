"""Corner cases from a review of the engine: each was a loss, a duplicate or a stuck pipeline."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from lab.operating import NAMESPACE, events
from lab.scripted import Script, scripted
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from conduit_dagster.connectors.file.ordered_file import OrderedFile
from conduit_dagster.sdk import Delivery
from conduit_dagster.state.overview import consumer_rows


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(4)])
    return lab


def values(lab: Lab, name: str = "out.jsonl") -> list[int]:
    return [row["i"] for row in lab.documents(name)]


def code_of(lab: Lab) -> str:
    error = lab.run().error
    assert error is not None
    return error.code


def test_a_nack_behind_an_unacked_record_is_not_lost(lab: Lab) -> None:
    """Its namespace advanced; the record is sent again, since no dead letter was written."""
    script = Script(lab)
    lab.write("in.jsonl", [{"i": 0, "c": "A"}, {"i": 1, "c": "B"}, {"i": 2, "c": "A"}])
    lab.pipeline(connectors=[source(), scripted()], processors=[DECODE, NAMESPACE], **{"dead-letter-queue": queue()})
    script.says(acks=[[2, "only"]], refuse=[1])
    assert code_of(lab) == "delivery.unacked"
    script.sent()
    script.says(refuse=[1])
    assert lab.run().error is None
    assert script.values() == [0, 1, 2]
    assert [after["i"] for _, _, after in lab.letters()] == [1]


def test_at_most_once_publishes_the_others_when_the_queue_fails(lab: Lab) -> None:
    script = Script(lab)
    letters = {**scripted("dead"), "window-size": 0}
    del letters["id"], letters["type"]
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, processor("no", "error", "after.i == 1", message="one")],
        delivery={"strategy": "at-most-once"},
        **{"dead-letter-queue": letters},
    )
    script.says("dead", outage=[1])
    assert lab.run().error is not None
    script.says("dead")
    assert lab.run().error is None
    assert values(lab) == [0, 2, 3]
    with lab.store() as database:
        delivered = {row["id"]: row["delivered"] for row in consumer_rows(database, "p")}
    dropped = events(lab, "dropped")
    assert delivered == {"out": 3, "dead_letters": 0}
    assert [(row["consumer"], row["records"]) for row in dropped] == [("dead_letters", 1)]


@pytest.mark.parametrize("point", ["after-plan", "after-log", "after-prepare"])
def test_a_prepared_step_ends_before_another_source_is_logged(lab: Lab, crashes: Crashes, point: str) -> None:
    lab.write("other.jsonl", [{"i": i} for i in (10, 11)])

    def build(path: str) -> None:
        lab.pipeline(
            connectors=[source(path), destination()],
            processors=[DECODE],
            delivery={"strategy": "exactly-once", "log": "records"},
        )

    build("./in.jsonl")
    crashes(lab, point)
    build("./other.jsonl")
    assert lab.run().error is None
    # a step that is only planned is not in the log: it is dropped with its source, as without a log
    assert values(lab) == [*([] if point == "after-plan" else range(4)), 10, 11]


def test_a_prepared_step_ends_before_a_join_has_another_member(lab: Lab, crashes: Crashes) -> None:
    def one(name: str) -> dict[str, Any]:
        return {**source(f"./{name}.jsonl"), "id": name}

    def build(*names: str) -> None:
        lab.pipeline(connectors=[*map(one, names), destination()], delivery={}, **{"fan-in": "join"})

    for name in "abc":
        lab.write(f"{name}.jsonl", [{"i": i} for i in range(3)])
    build("a", "b")
    crashes(lab, "after-prepare")
    build("a", "b", "c")
    assert lab.run().error is None
    assert [sorted(row) for row in lab.documents("out.jsonl")] == [["a", "b"]] * 3


def test_letters_of_two_destinations_when_the_queue_is_full(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has no place before the first one is written."""
    script = Script(lab)
    lab.pipeline(
        connectors=[source(), scripted("a"), scripted("b")], processors=[DECODE], **{"dead-letter-queue": queue()}
    )
    script.says("a", refuse=[1])
    script.says("b", refuse=[2])

    def full(self: OrderedFile, delivery: Delivery) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OrderedFile, "publish", full)
        assert code_of(lab) == "file.disk_full"
    assert lab.run().error is None
    assert sorted(after["i"] for _, _, after in lab.letters()) == [1, 2]


def test_letters_for_a_folder_on_another_disk(lab: Lab) -> None:
    folders = [one for one in (Path("/dev/shm"), Path("/var/tmp")) if one.is_dir()]
    others = [one for one in folders if one.stat().st_dev != lab.root.stat().st_dev]
    if not others:
        pytest.skip("there is no second file system here")
    far = Path(tempfile.mkdtemp(dir=others[0]))
    try:
        script = Script(lab)
        letters = {"plugin": "builtin:file", "settings": {"path": f"{far}/dead/"}, "window-size": 0}
        lab.pipeline(connectors=[source(), scripted()], processors=[DECODE], **{"dead-letter-queue": letters})
        script.says(refuse=[1])
        assert lab.run().error is None
        assert len(list((far / "dead").rglob("*.jsonl"))) == 1
    finally:
        shutil.rmtree(far)


def test_a_target_that_changes_while_a_step_is_only_planned(lab: Lab, crashes: Crashes) -> None:
    def build(path: str) -> None:
        lab.pipeline(connectors=[source(), destination("out", path)], processors=[DECODE])

    build("./old.jsonl")
    crashes(lab, "after-plan")
    build("./new.jsonl")
    crashes(lab, "after-prepare")
    assert lab.run().error is None
    assert (values(lab, "old.jsonl"), values(lab, "new.jsonl")) == ([], [0, 1, 2, 3])


def test_a_range_without_a_record_is_logged_as_none(lab: Lab) -> None:
    """A last line without an end was read; then only its end arrives."""
    (lab.root / "in.jsonl").write_text('{"i": 0}')
    endless = {"path": "./in.jsonl", "read-unterminated": "true", "unterminated-wait": "0s"}
    lab.pipeline(connectors=[source(settings=endless), destination()], processors=[DECODE], delivery={"log": "records"})
    assert lab.run().error is None
    with (lab.root / "in.jsonl").open("a") as file:
        file.write("\n")
    assert lab.run().error is None
    lab.write("in.jsonl", [{"i": 1}], mode="a")
    assert lab.run().error is None
    assert values(lab) == [0, 1]


def test_a_fatal_error_of_one_destination_is_not_hidden_by_an_outage_of_another(lab: Lab) -> None:
    script = Script(lab)
    lab.pipeline(
        connectors=[source(), scripted("a"), scripted("b")],
        processors=[DECODE],
        **{"dead-letter-queue": queue(2, 1)},
    )
    script.says("a", outage=[0])
    script.says("b", refuse=[1, 2])
    result = lab.run()
    assert result.error is not None
    assert (result.error.code, result.error.fatal) == ("nacks.threshold_exceeded", True)


def test_staging_that_cannot_be_deleted_ends_no_run_and_is_told_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of workers of another user; the next run that may deletes it."""
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], delivery={"batch-size": 2})
    staging, remove = lab.root / ".conduit" / "staging" / "p", os.rmdir

    def refuse(path: Any, **more: Any) -> None:
        if staging in Path(path).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        remove(path, **more)

    with monkeypatch.context() as patch, capture_logs() as logged:
        patch.setattr(os, "rmdir", refuse)
        assert lab.run().error is None
    assert values(lab) == [0, 1, 2, 3]
    assert len(list(staging.iterdir())) == 2
    (line,) = [line for line in logged if "can't be removed" in line["event"]]
    assert (Path(line["folder"]).parent, "Permission denied" in line["cause"]) == (staging, True)
    assert lab.run().error is None
    assert list(staging.iterdir()) == []


def test_a_source_that_comes_back_goes_on_where_it_was_left(lab: Lab) -> None:
    """A mistake in the file must not cost the position."""

    def build(path: str) -> None:
        lab.pipeline(
            connectors=[source(path), destination()], processors=[DECODE], delivery={"strategy": "exactly-once"}
        )

    build("./in.jsonl")
    assert lab.run().error is None
    build("./im.jsonl")
    assert code_of(lab) == "file.missing"
    build("./in.jsonl")
    lab.write("in.jsonl", [{"i": 4}], mode="a")
    assert lab.run().error is None
    assert values(lab) == [0, 1, 2, 3, 4]
