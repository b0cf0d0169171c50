"""``pipelines delete``: nothing stays that a later pipeline of this id could mistake for its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.chain_lab import chained, downstream, runs, upstream
from lab.kills import at, crashing
from lab.operating import RECORDS, after_bulk_error, build, error, events, result, snapshot
from lab.scripted import Script
from lab.support import Lab, destination, source

from conduit_dagster.cli.operate import subject
from conduit_dagster.engine.operate.delete import delete
from conduit_dagster.engine.operate.pipeline_lock import owned
from conduit_dagster.engine.pipeline_folders import FolderListing
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import DELETION
from conduit_dagster.state import deletion, tables
from conduit_dagster.state.dead_letters import DeadLetterQuery, pages
from conduit_dagster.state.lease import acquire

STAYS = {"conduit_meta", "conduit_pipelines", "conduit_recoveries", "conduit_generations", "conduit_history"}


def rows(lab: Lab) -> dict[str, int]:
    """Return how many rows each table has of the pipeline ``p``."""
    with lab.store() as database, database.connect() as connection:
        return {
            table.name: connection.execute(
                sa.select(sa.func.count()).select_from(table).where(table.c.pipeline == "p")
            ).scalar_one()
            for table in tables.metadata.sorted_tables
            if "pipeline" in table.c
        }


def kept_files(lab: Lab) -> list[Path]:
    """Return the files of the log, the archive and the staging folder."""
    folders = [lab.root / ".conduit" / name for name in ("log", "staging")]
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def with_letters(lab: Lab, **more: Any) -> None:
    """Run a pipeline of five lines, two of which are no JSON."""
    build(lab, 3, destination(), **more)
    with (lab.root / "in.jsonl").open("a") as file:
        file.write("not JSON\nnor this\n")
    assert lab.run().error is None


def generation(lab: Lab) -> int:
    with lab.store() as database, database.connect() as connection:
        mine = sa.select(tables.sources.c.generation).where(tables.sources.c.pipeline == "p")
        return connection.execute(mine).scalar_one()


@pytest.mark.parametrize("log", ["positions", "records"])
def test_nothing_stays_but_its_history_and_its_numbers(run, lab: Lab, log: str) -> None:
    with_letters(lab, delivery={"log": log})
    before = generation(lab)
    refusal = error(run("pipelines", "delete", "p", "--json"))
    assert (refusal["code"], "2 open dead letters" in refusal["message"]) == ("pipeline.would_lose", True)
    settled = "replay or discard its dead letters (conduit-dagster dlq list p); or repeat it with --force"
    assert refusal["fix"] == settled
    there, files = snapshot(lab), kept_files(lab)
    would = result(run("pipelines", "delete", "p", "--force", "--dry-run", "--json"))
    assert (would["lost"], would["dry_run"]) == (["2 open dead letters"], True)
    assert (snapshot(lab), kept_files(lab)) == (there, files)
    assert files

    said = run("pipelines", "delete", "p", "--force")
    assert "p: deleted: its state (1 source), log, dead letters; lost: 2 open dead letters;" in said.out
    assert {name for name, count in rows(lab).items() if count} <= STAYS
    assert kept_files(lab) == []
    assert len(lab.documents("dead.jsonl")) == 2  # the queue is not ours to delete
    (event,) = events(lab, "deleted")
    assert event["lost"] == ["2 open dead letters"]
    (row,) = result(run("pipelines", "list", "--json"))["pipelines"]
    assert (row["status"], row["records"], row["dead_letters"]) == ("stopped", 0, 0)

    # it starts over: no destination mistakes its deliveries for earlier ones
    assert lab.run().progress.read == 5
    assert [row["i"] for row in lab.documents("out.jsonl")] == [0, 1, 2, 0, 1, 2]
    assert generation(lab) > before
    assert len(events(lab, "provisioned")) == 2


def test_without_its_file_it_is_forgotten(run, lab: Lab) -> None:
    build(lab, 3, destination())
    assert lab.run().error is None
    (lab.root / "pipelines" / "p.yaml").unlink()
    (row,) = result(run("pipelines", "list", "--json"))["pipelines"]
    assert (row["id"], row["file"]) == ("p", None)
    assert run("pipelines", "delete", "p").code == 0
    assert result(run("pipelines", "list", "--json"))["pipelines"] == []
    assert result(run("pipelines", "history", "p", "--json"))["events"][-1]["event"] == "deleted"
    assert error(run("pipelines", "history", "q", "--json"))["code"] == "usage.unknown_pipeline"
    assert error(run("pipelines", "delete", "p", "--json"))["code"] == "usage.unknown_pipeline"


def test_a_file_with_errors_is_mended_first(run, lab: Lab) -> None:
    """Or removed: else it is unknown what its sources left."""
    build(lab, 3, destination())
    assert lab.run().error is None
    path = lab.root / "pipelines" / "p.yaml"
    path.write_text(path.read_text().replace("json.decode", "json.decoed"))
    assert error(run("pipelines", "delete", "p", "--force", "--json"))["code"] == "validation.failed"
    path.unlink()
    assert run("pipelines", "delete", "p").code == 0


def test_one_that_never_ran_or_runs_is_refused(run, lab: Lab) -> None:
    build(lab, 3, destination())
    assert error(run("pipelines", "delete", "p", "--json"))["code"] == "pipeline.never_ran"
    assert lab.run().error is None
    bound = lab.catalogue().get("p")
    assert bound is not None
    with lab.store() as database:
        lease = acquire(database, "p", 1.0)
        refusal = error(run("pipelines", "delete", "p", "--json"))
        lease.release()
        assert (refusal["code"], "stop it first" in refusal["fix"]) == ("lease.held", True)
        assert "conduit-dagster pipelines stop p;" in refusal["fix"]
        with owned(bound, database, RunOptions.of(lab.catalogue().project), _no_spark, "me"):
            refusal = error(run("pipelines", "delete", "p", "--json"))
    assert (refusal["code"], "a command is at work on pipeline p" in refusal["message"]) == ("lease.held", True)
    assert refusal["fix"] == "repeat this once that command has ended"


def _no_spark() -> Any:
    raise AssertionError("it needs no Spark")


def test_what_is_not_delivered_is_named(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery=RECORDS)
    before = snapshot(lab)
    refusal = error(run("pipelines", "delete", "p", "--json"))
    assert "step 2, which is prepared and not done; 7 logged records of in that are not delivered" in refusal["message"]
    assert snapshot(lab) == before
    assert run("pipelines", "delete", "p", "--force").code == 0
    assert {name for name, count in rows(lab).items() if count} <= STAYS


def test_a_log_that_others_read_stays(run, lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(20)])
    upstream(lab)
    downstream(lab, chained(), destination("out"))
    runs(lab, "a", "p")
    refusal = error(run("pipelines", "delete", "a", "--json"))
    assert (refusal["code"], "read by p:in" in refusal["message"]) == ("pipeline.has_readers", True)
    assert error(run("pipelines", "delete", "a", "--force", "--json"))["code"] == "pipeline.has_readers"
    assert run("pipelines", "delete", "p").code == 0
    assert run("pipelines", "delete", "a").code == 0


def test_one_that_begins_to_read_its_log_meanwhile_keeps_it(run, lab: Lab) -> None:
    """It would go on at its offset in a log that begins anew, and miss what comes before that."""
    lab.write("in.jsonl", [{"i": i} for i in range(20)])
    upstream(lab)
    downstream(lab, chained(), destination("out"))
    runs(lab, "a")
    with at("after-servers", lambda: runs(lab, "p")):
        assert error(run("pipelines", "delete", "a", "--force", "--json"))["code"] == "pipeline.has_readers"
    lab.write("in.jsonl", [{"i": i} for i in range(20, 30)], mode="a")
    runs(lab, "a", "p")
    assert [row["i"] for row in lab.documents("out.jsonl")] == [*range(30)]
    assert [row["i"] for row in lab.documents("first.jsonl")] == [*range(30)]


def test_one_that_read_its_log_before_reads_the_new_one_from_its_beginning(run, lab: Lab) -> None:
    """It read another log meanwhile, and would go on at an offset of the log that was deleted."""
    lab.write("in.jsonl", [{"i": i} for i in range(20)])
    lab.write("other.jsonl", [{"i": 100}])
    upstream(lab)
    lab.pipeline(id="b", connectors=[source("./other.jsonl"), destination("second")], delivery=RECORDS)
    for read in ("a", "b"):
        downstream(lab, chained(read), destination("out"))
        runs(lab, read, "p")
    assert run("pipelines", "delete", "a").code == 0
    lab.write("in.jsonl", [{"i": i} for i in range(20, 50)])
    downstream(lab, chained("a"), destination("out"))
    runs(lab, "a", "p")
    assert [row["i"] for row in lab.documents("out.jsonl")] == [*range(20), 100, *range(20, 50)]


@pytest.mark.parametrize("point", DELETION)
def test_it_may_be_killed_and_repeated(run, lab: Lab, point: str) -> None:
    with_letters(lab, delivery=RECORDS)
    with crashing(point):
        delete(subject("p", None), "me", force=True)
    assert events(lab, "deleted") == []
    assert run("pipelines", "delete", "p", "--force").code == 0
    # by whichever command deleted them first, whether or not it came to its end
    *_, told = events(lab, "deleting")
    assert (told["by"] == "me", told["lost"], told["sources"]) == (
        point != "after-servers",
        ["2 open dead letters"],
        ["in"],
    )
    assert {name for name, count in rows(lab).items() if count} <= STAYS
    assert kept_files(lab) == []
    assert lab.run().progress.read == 5


@pytest.mark.parametrize("point", DELETION)
def test_a_frozen_one_removes_nothing_of_the_next_owner(run, lab: Lab, point: str) -> None:
    """It is frozen for longer than its lease; another machine runs the pipeline, and it goes on."""
    with_letters(lab, delivery=RECORDS)

    def run_elsewhere() -> None:
        with lab.store() as database, database.begin() as connection:
            mine = tables.pipelines.c
            connection.execute(sa.update(tables.pipelines).values(epoch=mine.epoch + 1, owner=""))
        lab.write("in.jsonl", [{"i": i} for i in range(100, 103)], mode="a")
        assert lab.run().error is None

    with at(point, run_elsewhere):
        refusal = error(run("pipelines", "delete", "p", "--force", "--json"))
    assert refusal["code"] == "lease.lost"
    entries = result(run("log", "show", "p", "--from", "0", "--json"))["entries"]
    assert len(entries) == 8
    assert result(run("dlq", "export", "p", "letters.jsonl", "--json"))["letters"] == 2
    # the next owner ended the deletion, unless nothing was deleted yet
    assert len(events(lab, "deleted")) == (point != "after-servers")


@pytest.mark.parametrize("point", DELETION[1:])
@pytest.mark.parametrize("after", ["run", "import"])
def test_whatever_comes_after_a_killed_one_ends_it_first(run, lab: Lab, point: str, after: str) -> None:
    """Letters of before stayed beside those of the records that were read again, for a replay, and files for ever."""
    with_letters(lab, delivery=RECORDS)
    assert run("log", "export", "p", "all.log").code == 0
    with crashing(point):
        delete(subject("p", None), "me", force=True)
    before = kept_files(lab)
    if after == "import":
        lab.write("in.jsonl", [])
        assert result(run("log", "import", "p", "all.log", "--json"))["entries"] == 5
        assert not {*before} & {*kept_files(lab)}
    assert lab.run().error is None
    assert len(lab.documents("out.jsonl")) == 6
    assert sum(row["letters"] for row in result(run("dlq", "list", "p", "--json"))["pipelines"][0]["reasons"]) == 2
    assert before and not {*before} & {*kept_files(lab)}
    (told,) = events(lab, "deleted")
    assert (told["by"], told["lost"]) == ("me", ["2 open dead letters"])
    assert [one["id"] for one in result(run("pipelines", "list", "--json"))["pipelines"]] == ["p"]


def test_a_file_that_is_newer_than_the_listing_stays(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    for one in (folder / "in" / "0", folder / "in" / "1", elsewhere):
        one.mkdir(parents=True)
        (one / "old").touch()
    (folder / "link").symlink_to(elsewhere)
    listed = FolderListing(str(folder))
    (folder / "in" / "1" / "new").touch()
    listed.remove()
    listed.remove()
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == ["in", "in/1", "in/1/new"]
    assert (elsewhere / "old").exists()


def test_files_that_cannot_be_removed_are_told_and_it_is_repeated(run, lab: Lab) -> None:
    with_letters(lab, delivery=RECORDS)
    staging = lab.root / ".conduit" / "staging" / "p"
    staging.rename(lab.root / "elsewhere")
    staging.symlink_to(lab.root / "elsewhere")  # removed as a folder by nobody, not even by root
    refusal = error(run("pipelines", "delete", "p", "--force", "--json"))
    assert "the state of pipeline p is deleted, but not all of its files: " in refusal["message"]
    assert (refusal["place"], refusal["fix"]) == (str(staging), "remove it, and repeat the command")
    assert not events(lab, "deleted")
    assert not list((lab.root / ".conduit" / "log").rglob("*.parquet"))
    staging.unlink()
    assert run("pipelines", "delete", "p").code == 0
    assert len(events(lab, "deleted")) == 1


def test_many_dead_letters_go_in_pieces(run, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write("in.jsonl", ["no document"] * 7)
    build_only_letters(lab)
    assert lab.run().progress.read == 7
    assert rows(lab)["conduit_dead_letters"] == 7
    monkeypatch.setattr(deletion, "_AT_ONCE", 2)
    assert run("pipelines", "delete", "p", "--force").code == 0
    assert {name for name, count in rows(lab).items() if count} <= STAYS


def build_only_letters(lab: Lab) -> None:
    """Create a pipeline that nacks every line of its file."""
    lines = (lab.root / "in.jsonl").read_text()
    build(lab, 0, destination())
    (lab.root / "in.jsonl").write_text(lines.replace('"', ""))


def test_letters_that_are_deleted_between_two_pages_end_the_reading(run, lab: Lab) -> None:
    with_letters(lab)
    with lab.store() as database:
        found = pages(database, "p", DeadLetterQuery(), size=1)
        assert len(next(found)) == 1
        assert run("pipelines", "delete", "p", "--force").code == 0
        with pytest.raises(FatalError, match="deleted while they were read") as error:
            next(found)
    assert error.value.code == "dead_letters.deleted"
