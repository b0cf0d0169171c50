"""Start-up recovery after a crash: prepared deliveries are published as decided, or refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lab.delta_rows import column
from lab.file_changes import pack
from lab.operating import events
from lab.postgres_server import PostgresServer
from lab.postgres_tables import drop_slots
from lab.scripted import Script, scripted
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.loop import make_context
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.stager import Stager
from conduit_dagster.engine.step_context import SourceAcks
from conduit_dagster.state.lease import Lease
from conduit_dagster.state.store import PipelineStore

ROWS = [{"i": i} for i in range(6)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


@pytest.fixture
def crash(lab: Lab, crashes: Crashes) -> Callable[[str], None]:
    """Run the pipeline until it crashes at the named point."""
    return partial(crashes, lab)


def build(lab: Lab, *processors: Any, path: str = "out.jsonl", **settings: str) -> None:
    output = destination(path=f"./{path}")
    output["settings"] |= settings
    lab.pipeline(connectors=[source(), output], processors=[DECODE, *processors], **{"dead-letter-queue": queue()})


def lose_staging(lab: Lab) -> None:
    shutil.rmtree(lab.root / ".conduit" / "staging")


def code_of(result: RunResult) -> str:
    assert result.error is not None
    assert result.error.fix
    return result.error.code


@pytest.mark.parametrize("point", ["after-plan", "after-prepare"])
def test_the_source_is_rotated_and_compressed_after_a_crash(lab: Lab, crash: Callable[[str], None], point: str) -> None:
    """The open step has its records, and the next one begins right behind them, in the compressed file."""
    build(lab)
    crash(point)
    lab.write("in.jsonl", [{"i": 6}], mode="a")
    pack((lab.root / "in.jsonl").rename(lab.root / "in.jsonl-20261125"))
    lab.write("in.jsonl", [{"i": 7}])
    if point == "after-prepare":
        lose_staging(lab)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 6}, {"i": 7}]


def test_staging_that_is_lost_is_rebuilt(lab: Lab, crash: Callable[[str], None]) -> None:
    build(lab)
    crash("after-prepare")
    lose_staging(lab)
    result = lab.run()
    assert result.error is None
    assert lab.documents("out.jsonl") == ROWS
    assert result.progress.delivered == {"out": 6}


def test_a_rebuild_finds_the_source_under_its_new_name(lab: Lab, crash: Callable[[str], None]) -> None:
    build(lab)
    crash("after-prepare")
    lose_staging(lab)
    (lab.root / "in.jsonl").rename(lab.root / "in.jsonl.1")
    lab.write("in.jsonl", [{"i": 6}])
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 6}]


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("gone", [False, True])
def test_a_rebuild_whose_source_is_lost_is_refused(
    lab: Lab, crash: Callable[[str], None], gone: bool, skips: bool
) -> None:
    """It was taken for a rotation, which the next attempt finds in its new place, and was repeated for ever."""
    read = source(**{"on-gone": "skip"}) if skips else source()
    lab.pipeline(connectors=[read, destination()], processors=[DECODE], **{"dead-letter-queue": queue()})
    crash("after-prepare")
    lose_staging(lab)
    file = lab.root / "in.jsonl"
    before = file.read_text()
    if gone:
        file.unlink()
    else:
        lab.write("in.jsonl", [{"i": -1}] * 6)
    refused = lab.run()
    assert code_of(refused) == "delivery.rebuild_differs"
    assert refused.error is not None and (refused.error.fatal, refused.error.node) == (True, "p:in")
    (lab.root / "in.jsonl.1").write_text(before)
    assert lab.run().error is None
    assert lab.documents("out.jsonl")[:6] == ROWS


@pytest.mark.slow
def test_a_rebuild_of_rows_whose_snapshot_is_gone_is_given_up_as_the_error_says(
    lab: Lab, crash: Callable[[str], None], postgres_server: PostgresServer
) -> None:
    """It was tried again for ever, with the words that they are planned again, which a prepared step never is."""
    url = postgres_server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 4)")
    read = {"url": url, "tables": "t", "logrepl.slotName": url.rpartition("/")[2]}
    origin = {"id": "in", "type": "source", "plugin": "postgres", "settings": read}
    lab.pipeline(connectors=[origin, destination()], delivery={"batch-size": 2})
    crash("after-prepare")
    lose_staging(lab)
    refused = lab.run().error
    assert refused is not None and (refused.code, refused.fatal) == ("delivery.rebuild_differs", True)
    assert "the snapshot" in refused.message and "another id" in (refused.fix or "")
    lab.pipeline(connectors=[origin, destination("other")], delivery={"batch-size": 2})
    assert lab.run().error is None
    assert lab.documents("other.jsonl") == [{"i": 3}, {"i": 4}]
    drop_slots(url)


def test_a_rebuild_that_would_deliver_something_else_is_refused(lab: Lab, crash: Callable[[str], None]) -> None:
    """The decision is final: put the processors back, let it finish, then change them."""
    build(lab)
    crash("after-prepare")
    lose_staging(lab)
    build(lab, processor("more", "field.set", field=".Payload.After.more", value="x"))
    refused = lab.run()
    assert code_of(refused) == "delivery.rebuild_differs"
    # an upgrade may be the cause, too
    assert refused.error is not None and "or the version of conduit-dagster has changed" in refused.error.message
    assert lab.lines("out.jsonl") == []
    build(lab)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS


@pytest.mark.parametrize("log", ["positions", "records"])
def test_a_step_that_can_t_be_rebuilt_is_given_up_with_its_destination(
    lab: Lab, crash: Callable[[str], None], log: str
) -> None:
    """The way out where nothing can be put back. From the log, a destination with another id gets its records."""

    def built(name: str, *processors: Any, **more: Any) -> None:
        output = destination(name, path="./out.jsonl", **more)
        lab.pipeline(
            connectors=[source(), output],
            processors=[DECODE, *processors],
            delivery={"log": log},
            **{"dead-letter-queue": queue()},
        )

    changed = processor("more", "field.set", field=".Payload.After.more", value="x")
    built("out")
    crash("after-prepare")
    lose_staging(lab)
    built("out", changed)
    refused = lab.run()
    assert refused.error is not None and "give the destination (out) another id" in (refused.error.fix or "")
    lab.write("in.jsonl", [{"i": 6}], mode="a")
    built("again", changed, **({"start-from": "log"} if log == "records" else {}))
    result = lab.run()
    assert result.error is None
    delivered = range(7) if log == "records" else [6]
    assert lab.documents("out.jsonl") == [{"i": i, "more": "x"} for i in delivered]
    assert result.progress.delivered == {"out": 0, "again": len(delivered)}
    [event] = events(lab, "consumer_retired")
    assert event == {"consumer": "out", "step": 1, "records": 6}


def test_a_changed_place_of_the_hashes_under_a_committed_step_is_refused(
    lab: Lab, crash: Callable[[str], None]
) -> None:
    """Here: the id of the transactions in a Delta table. The step would not be found, and be committed once more."""

    def built(**settings: str) -> None:
        output = {"id": "out", "type": "destination", "plugin": "delta", "settings": {"path": "./table", **settings}}
        lab.pipeline(connectors=[source(), output], processors=[DECODE], **{"dead-letter-queue": queue()})

    built()
    crash("after-publish")
    built(**{"app-id": "mine"})
    refused = lab.run()
    assert code_of(refused) == "delivery.target_changed"
    assert refused.error is not None and "with app-id mine" in refused.error.message
    assert refused.error.node == "p:out"
    built()
    assert lab.run().error is None
    built(**{"app-id": "mine"})
    lab.write("in.jsonl", [{"i": 6}], mode="a")
    assert lab.run().error is None
    assert sorted(column(lab.root / "table", "i")) == list(range(7))


def test_a_changed_processor_does_not_change_what_is_staged(lab: Lab, crash: Callable[[str], None]) -> None:
    build(lab)
    crash("after-prepare")
    build(lab, processor("more", "field.set", field=".Payload.After.more", value="x"))
    lab.write("in.jsonl", [{"i": 6}], mode="a")
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 6, "more": "x"}]


@pytest.mark.parametrize("how", ["path", "plugin"])
def test_a_changed_target_under_a_prepared_step_is_refused(lab: Lab, crash: Callable[[str], None], how: str) -> None:
    build(lab)
    crash("after-prepare")
    if how == "path":
        build(lab, path="other.jsonl")
    else:
        log = {"id": "out", "type": "destination", "plugin": "log"}
        lab.pipeline(connectors=[source(), log], processors=[DECODE], **{"dead-letter-queue": queue()})
    result = lab.run()
    assert code_of(result) == "delivery.target_changed"
    assert result.error is not None
    assert "file out.jsonl" in result.error.message
    build(lab)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS


def test_a_destination_that_is_gone_from_the_file_is_retired(lab: Lab, crash: Callable[[str], None]) -> None:
    lab.pipeline(connectors=[source(), destination("out"), destination("gone")], processors=[DECODE])
    crash("after-prepare")
    build(lab)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS
    assert lab.lines("gone.jsonl") == []


def test_a_planned_range_that_is_gone(lab: Lab, crash: Callable[[str], None]) -> None:
    """It is named at every start, until the file is back or the settings give it up."""
    build(lab)
    crash("after-plan")
    lab.write("in.jsonl", [])
    assert code_of(lab.run()) == "file.range_gone"
    skipping = source()
    skipping["settings"]["on-gone"] = "skip"
    lab.pipeline(connectors=[skipping, destination()], processors=[DECODE], **{"dead-letter-queue": queue()})
    lab.write("in.jsonl", [{"i": 9}])
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 9}]


def test_a_lost_destination_file_is_adopted_where_the_settings_say_so(lab: Lab, crash: Callable[[str], None]) -> None:
    build(lab)
    crash("after-prepare")
    (lab.root / "out.jsonl").rename(lab.root / "kept")
    assert code_of(lab.run()) == "file.changed"
    build(lab, **{"if-changed": "adopt"})
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS


@pytest.mark.parametrize("point", ["after-prepare", "after-done"])
def test_a_destination_file_from_a_backup_goes_on_as_the_fix_says(
    lab: Lab, crash: Callable[[str], None], point: str
) -> None:
    """``exactly-once`` refuses ``if-changed: adopt``, so that the fix led nowhere: it takes one run of another."""
    once = {"delivery": {"strategy": "exactly-once", "batch-size": 3}}
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], **once)
    crash(point)
    copy = lab.root / "copy"
    copy.write_bytes((lab.root / "out.jsonl").read_bytes())
    copy.replace(lab.root / "out.jsonl")
    refused = lab.run()
    assert code_of(refused) == "file.changed"
    assert refused.error is not None and "delivery.strategy: at-least-once for that run" in (refused.error.fix or "")
    adopting = destination()
    adopting["settings"]["if-changed"] = "adopt"
    lab.pipeline(connectors=[source(), adopting], processors=[DECODE])
    assert lab.run().error is None
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], **once)
    lab.write("in.jsonl", [{"i": 6}], mode="a")
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [*ROWS, {"i": 6}]


def test_nothing_is_left_in_staging(lab: Lab, crash: Callable[[str], None]) -> None:
    """After a successful run, whatever earlier runs left there."""
    build(lab)
    crash("after-stage")
    crash("after-prepare")
    assert list((lab.root / ".conduit" / "staging" / "p").iterdir())
    assert lab.run().error is None
    assert list((lab.root / ".conduit" / "staging" / "p").iterdir()) == []


def test_b14_a_crash_between_publish_and_mark_sends_nothing_again(lab: Lab, crash: Callable[[str], None]) -> None:
    """The destination is asked, and what it holds is not published a second time (CASES B14)."""
    lab.pipeline(connectors=[source(), destination("out", "./out/")], processors=[DECODE])
    crash("after-publish")
    [part] = (lab.root / "out").glob("step=*/*")
    before = part.stat().st_mtime_ns
    assert lab.run().error is None
    [part] = (lab.root / "out").glob("step=*/*")
    assert part.stat().st_mtime_ns == before
    assert [json.loads(line) for line in part.open()] == ROWS


def test_an_old_owner_cleans_nothing_of_a_newer_one(lab: Lab, crash: Callable[[str], None]) -> None:
    """One that was frozen and continues has an outdated list of open steps."""
    build(lab)
    crash("after-stage")
    crash("after-prepare")
    folder = lab.root / ".conduit" / "staging" / "p"
    epochs = sorted(int(path.name.split("-")[0]) for path in folder.iterdir())
    bound = lab.catalogue().get("p")
    assert bound is not None
    options = RunOptions(str(folder.parent))
    no_jobs: Any = None  # cleaning runs none

    def clean(epoch: int) -> None:
        with lab.store() as database:
            lease = Lease(database, "p", epoch, 10)
            store, acks = PipelineStore(database, lease), SourceAcks()
            Stager(make_context(bound, store, no_jobs, options, lambda: 1, acks)).clean([])
            lease.release()

    clean(epochs[0])
    assert len(list(folder.iterdir())) == len(epochs)
    clean(epochs[-1] + 1)
    assert list(folder.iterdir()) == []


def test_letters_of_a_step_that_was_prepared_for_another_queue(lab: Lab, crash: Callable[[str], None]) -> None:
    """The queue may change while nothing is unwritten: letters are bound to the queue that was there for them."""
    script = Script(lab)

    def built(path: str) -> None:
        dead = {"dead-letter-queue": queue(path=path)}
        lab.pipeline(connectors=[source(), scripted()], processors=[DECODE], **dead)

    built("./old.jsonl")
    script.says(outage=[1])
    assert lab.run().error is not None
    built("./new.jsonl")
    script.says(refuse=[1])
    crash("after-nack")
    built("./old.jsonl")
    result = lab.run()
    assert code_of(result) == "delivery.target_changed"
    assert result.error is not None and "new.jsonl, but dead_letters is" in result.error.message
    built("./new.jsonl")
    assert lab.run().error is None
    assert [after["i"] for _, _, after in lab.letters("new.jsonl")] == [1]
    assert lab.lines("old.jsonl") == []
