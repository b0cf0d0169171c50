"""``pipelines list`` and ``describe``."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.as_owner import ERROR, owned
from lab.idle_source import install
from lab.leases import change_owner
from lab.operating import RECORDS, after_bulk_error, build, fails_at_14, result
from lab.scripted import Script, scripted
from lab.support import Lab, destination, source
from lab.waiting import wait_until

from conduit_dagster.cli import pipeline_list
from conduit_dagster.recovery.policy import PipelineStatus, Policy
from conduit_dagster.state.status_store import RunStart


def test_list_does_not_create_the_state_store(run, project: Path) -> None:
    ran = run("pipelines", "list", "--json")
    (row,) = ran.envelope["result"]["pipelines"]
    assert (row["id"], row["status"], row["starts"], row["findings"]) == ("orders", None, "running", 0)
    assert run("pipelines", "describe", "orders").code == 0
    assert not (project / ".conduit").exists()


def test_list_shows_status_and_first_error_from_the_store(run, failed: Path) -> None:
    (row,) = run("pipelines", "list", "--json").envelope["result"]["pipelines"]
    assert (row["status"], row["error"]["code"]) == ("degraded", "x.y")
    assert "degraded" in run("pipelines", "list").out


def test_list_shows_pipelines_whose_file_is_gone(run, failed: Path) -> None:
    (failed / "pipelines" / "orders.yaml").unlink()
    (row,) = run("pipelines", "list", "--json").envelope["result"]["pipelines"]
    assert (row["id"], row["file"]) == ("orders", None)


def test_only_a_run_whose_process_is_gone_is_said_to_be_gone(run, project: Path) -> None:
    """Not a stopped pipeline whose command was killed; but a restart that is under way."""
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.status.ended(PipelineStatus.STOPPED, "user")
        change_owner(store.engine, pid=2**22 + 1, started="1")
        assert "gone" not in run("pipelines", "list").out + run("pipelines", "describe", "orders").out
        assert "gone" not in run("doctor").out
    with owned(project) as store:
        failed = store.status.failed({**ERROR, "fatal": False}, Policy(), "first")
        store.status.begin(RunStart("again", "pipelines/orders.yaml", restart=failed.failure))
        change_owner(store.engine, pid=2**22 + 1, started="1")
        assert "recovering, restart 1, its process is gone" in run("pipelines", "list").out
        assert "its process is gone; the next run" in run("pipelines", "describe", "orders").out
        assert "orders counts as recovering, its process is gone" in run("doctor").out


def test_list_of_a_folder_without_pipelines_is_empty(run, folder: Path) -> None:
    ran = run("pipelines", "list", "--json")
    assert (ran.code, ran.envelope["result"]["pipelines"]) == (0, [])


def test_list_counts_findings(run, project: Path, pipeline) -> None:
    (project / "pipelines" / "bad.yaml").write_text(pipeline("bad").replace("json.decode", "json.decod"))
    rows = run("pipelines", "list", "--json").envelope["result"]["pipelines"]
    assert {row["id"]: row["findings"] for row in rows} == {"bad": 1, "orders": 0}


def test_describe_tells_everything(run, failed: Path) -> None:
    facts = run("pipelines", "describe", "orders", "--json").envelope["result"]
    assert facts["status"]["now"] == "degraded"
    assert facts["error"]["message"] == "it broke"
    assert facts["delivery"]["strategy"] == "at-least-once"
    assert facts["delivery"]["log"]["chosen"] == "positions"
    assert [one["id"] for one in facts["sources"]] == ["in"]
    assert [one["id"] for one in facts["processors"]] == ["decode"]
    assert facts["dead_letter_queue"]["window_size"] == 0
    assert facts["events"][0]["event"] == "degraded"


def test_describe_in_words(run, failed: Path) -> None:
    ran = run("pipelines", "describe", "orders")
    assert ran.code == 0
    for words in ("degraded", "x.y: it broke", "mend it", "json.decode", "tolerates every nack", "positions"):
        assert words in ran.out
    assert "  degraded: x.y in orders:in: it broke\n" in ran.out


def test_describe_of_a_pipeline_whose_file_is_gone_tells_what_the_store_knows(run, failed: Path) -> None:
    (failed / "pipelines" / "orders.yaml").unlink()
    ran = run("pipelines", "describe", "orders")
    assert ran.code == 0
    for words in ("no file any more", "degraded", "x.y: it broke", "mend it", "0 read", "newest events"):
        assert words in ran.out
    facts = run("pipelines", "describe", "orders", "--json").envelope["result"]
    assert (facts["file"], facts["delivery"], facts["error"]["code"]) == (None, None, "x.y")
    assert [one["id"] for one in facts["sources"]] == ["in"]
    assert [(one["id"], one["delivered"]) for one in facts["destinations"]] == [("out", 0)]
    assert "did you mean orders" in run("pipelines", "describe", "order").err


def test_what_is_said_of_files_that_are_named_is_of_them(run, failed: Path) -> None:
    (failed / "elsewhere").mkdir()
    broken = "elsewhere/my orders.yaml"
    (failed / broken).write_text("version: '9'\n")
    ran = run("pipelines", "list", broken)
    assert f"1 finding: conduit-dagster validate '{broken}' shows them" in ran.out
    assert "orders" in ran.out and "no file any more" not in ran.out
    fix = run("run", broken, "--json").envelope["error"]["fix"]
    assert fix == f"fix what is listed; conduit-dagster validate '{broken}' shows it again"
    error = run("pipelines", "describe", "orders", broken, "--json").envelope["error"]
    assert error["message"] == f"there is no pipeline orders in {broken}"
    assert error["fix"].endswith("conduit-dagster pipelines describe orders")


def test_a_folder_that_is_not_there_is_no_file_that_is_gone(run, failed: Path) -> None:
    """A disk may not be mounted: it is no time to say how to delete what is kept of its pipelines."""
    (failed / "pipelines").rename(failed / "away")
    assert "no file any more" not in run("pipelines", "list").out
    described = run("pipelines", "describe", "orders").out
    assert "pipelines delete" not in described and "No such file or directory" in described


def test_a_pipeline_whose_file_is_broken_is_not_one_whose_file_is_gone(run, failed: Path) -> None:
    file = failed / "pipelines" / "orders.yaml"
    file.write_text("version: '2.2'\npipelines:\n  - id: orders: broken\n")
    listed = run("pipelines", "list").out
    assert "no file any more" not in listed and "pipelines/orders.yaml" in listed
    [row] = run("pipelines", "list", "--json").envelope["result"]["pipelines"]
    assert (row["id"], row["file"], row["findings"]) == ("orders", str(file), 1)
    ran = run("pipelines", "describe", "orders")
    assert ran.code == 0
    for words in (f"{file}:3", "degraded", "x.y: it broke", "mapping values are not allowed here"):
        assert words in ran.out
    facts = run("pipelines", "describe", "orders", "--json").envelope["result"]
    assert (facts["file"], facts["line"], facts["delivery"]) == (str(file), 3, None)
    assert [one["code"] for one in facts["findings"]] == ["config.parse_error"]


def test_describe_never_shows_what_the_environment_put_in(run, project: Path, pipeline, monkeypatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    text = pipeline().replace("path: ./in.jsonl", "path: './${SECRET}.jsonl'")
    (project / "pipelines" / "orders.yaml").write_text(text)
    ran = run("pipelines", "describe", "orders", "--json")
    assert "hunter2" not in ran.out
    assert ran.envelope["result"]["sources"][0]["settings"] == {"path": "./${SECRET}.jsonl"}


def test_describe_finds_a_pipeline_in_a_file_elsewhere(run, project: Path, pipeline) -> None:
    (project / "other.yaml").write_text(pipeline("other"))
    assert run("pipelines", "describe", "other").code == 2
    assert run("pipelines", "describe", "other", "other.yaml").code == 0


def test_describe_of_an_unknown_id_names_the_nearest(run, project: Path) -> None:
    ran = run("pipelines", "describe", "order", "--json")
    assert ran.code == 2
    assert ran.envelope["error"]["fix"] == "did you mean orders?"


def test_a_store_that_cannot_be_read_is_an_environment_problem(run, project: Path) -> None:
    (project / ".conduit").mkdir()
    (project / ".conduit" / "state.db").write_text("this is no database, and long enough to be seen as none" * 9)
    ran = run("pipelines", "list", "--json")
    assert ran.code == 3
    assert ran.envelope["error"]["code"] == "state.damaged"


def test_describe_tells_what_an_open_step_has_delivered(run, lab: Lab, script: Script) -> None:
    """The counter changes when the delivery is done; the records are at the destination before."""
    fails_at_14(lab, script)
    (out,) = run("pipelines", "describe", "p", "--json").envelope["result"]["destinations"]
    assert (out["delivered"], out["open"]["handled"], out["open"]["delivered"]) == (9, 5, 5)
    assert f"delivered 9; 5 more of step {out['open']['step']} so far" in run("pipelines", "describe", "p").out
    script.says()
    assert lab.run().error is None
    (out,) = run("pipelines", "describe", "p", "--json").envelope["result"]["destinations"]
    assert (out["open"], out["delivered"]) == (None, 16)


@pytest.mark.usefixtures("shared_session")
def test_describe_counts_no_record_twice_or_that_was_given_up(run, lab: Lab, script: Script) -> None:
    build(lab, 4, scripted(), destination("two"))
    script.says(bulk=[2])
    assert lab.run().error is not None
    assert run("offsets", "mark", "p", "out", "0", "--json").envelope["ok"]
    assert run("offsets", "step", "p", "out", "--json").envelope["ok"]
    out, two = run("pipelines", "describe", "p", "--json").envelope["result"]["destinations"]
    assert (out["delivered"], out["open"]["handled"], out["open"]["delivered"]) == (0, 2, 1)
    assert (two["delivered"], two["open"]) == (4, None)


WAITING = """
while (root / "hang").exists():
    (root / "hangs").touch()
    time.sleep(0.02)
return 1000
"""
OF_PLUGIN: dict[str, Any] = {"id": "told", "type": "source", "plugin": "waiting", "settings": {}}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sources are waited for: on a busy machine even a quick one takes longer than a list waits."""
    monkeypatch.setattr(pipeline_list, "_LAG_SECONDS", 60.0)


def _waiting(lab: Lab, name: str, *sources: dict[str, Any]) -> None:
    install(lab.root, "waiting", WAITING)
    lab.pipeline(id=name, connectors=[*sources, destination("out", f"./{name}-out.jsonl")])


def _lags(ran: Any) -> dict[str, Any]:
    return {row["id"]: row["lag"] for row in ran.envelope["result"]["pipelines"]}


@pytest.mark.usefixtures("patient")
def test_list_shows_what_waits_before_and_after_a_run(run, lab: Lab) -> None:
    lab.write("in.jsonl", ["12345", "123"])
    lab.pipeline(connectors=[source(), destination()])
    assert _lags(run("pipelines", "list", "--json")) == {"p": {"bytes": 10}}
    assert "   10 B   " in run("pipelines", "list").out
    assert lab.run().error is None
    assert _lags(run("pipelines", "list", "--json")) == {"p": {"bytes": 0}}
    assert "   none   " in run("pipelines", "list").out
    lab.write("in.jsonl", ["1" * 1_199_999], "a")
    assert "   1.2 MB   " in run("pipelines", "list").out


@pytest.mark.usefixtures("patient")
def test_what_is_logged_and_not_delivered_waits(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery=RECORDS)
    assert _lags(run("pipelines", "list", "--json")) == {"p": {"records": 7, "bytes": 0}}
    assert "  lag 0 B\n    7 in the log, not delivered yet\n" in run("pipelines", "describe", "p").out
    assert result(run("pipelines", "describe", "p", "--json"))["sources"][0]["undelivered"] == 7


@pytest.mark.usefixtures("patient")
def test_list_adds_what_waits_in_one_unit(run, lab: Lab) -> None:
    lab.write("in.jsonl", ["123"])
    lab.write("more.jsonl", ["12345"])
    _waiting(lab, "p", source(), {**source("./more.jsonl"), "id": "more"}, OF_PLUGIN)
    assert _lags(run("pipelines", "list", "--json")) == {"p": {"bytes": 10, "records": 1000}}
    assert "   10 B, 1,000 records   " in run("pipelines", "list").out


@pytest.mark.usefixtures("patient")
def test_list_knows_no_lag_of_a_source_that_cannot_tell_or_fails(run, project: Path, pipeline) -> None:
    """Nor of a pipeline that can't run, or no longer exists."""
    (project / "in.jsonl").unlink()
    endless = "plugin: generator, settings: {format.type: structured, format.options.n: int}"
    text = pipeline("endless").replace("plugin: file, settings: {path: ./in.jsonl}", endless)
    (project / "pipelines" / "endless.yaml").write_text(text)
    (project / "pipelines" / "bad.yaml").write_text(pipeline("bad").replace("json.decode", "json.decod"))
    ran = run("pipelines", "list", "--json")
    assert _lags(ran) == {"bad": None, "endless": None, "orders": None}
    assert "lag" not in ran.envelope["summary"]
    assert "?" not in run("pipelines", "list").out


def test_list_waits_for_no_source_that_hangs_unless_it_is_told_to(
    run, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_list, "_LAG_SECONDS", 3.0)  # in which the quick source answers on a busy machine too
    lab.write("in.jsonl", ["123"])
    _waiting(lab, "hanging", OF_PLUGIN)
    _waiting(lab, "quick", source())
    hang = lab.root / "hang"
    hang.touch()
    ran = run("pipelines", "list", "--json")
    assert _lags(ran) == {"hanging": None, "quick": {"bytes": 4}}
    assert ran.envelope["summary"] == "2 pipelines; the lag of 1 was not found out in time: --lag waits for all"
    shown = run("pipelines", "list").out
    assert "   ?   " in shown and "--lag waits for all" in shown
    hangs = lab.root / "hangs"
    hangs.unlink()

    def release() -> None:
        wait_until(hangs.exists, "the source hangs")
        hang.unlink()

    releasing = threading.Thread(target=release)
    releasing.start()
    ran = run("pipelines", "list", "--lag", "--json")
    releasing.join()
    assert _lags(ran) == {"hanging": {"records": 1000}, "quick": {"bytes": 4}}
    assert ran.envelope["summary"] == "2 pipelines"


@pytest.mark.parametrize(("each", "known"), [(0.25, 5), (0.7, 0)])
def test_list_waits_as_long_as_sources_answer(
    run, lab: Lab, monkeypatch: pytest.MonkeyPatch, each: float, known: int
) -> None:
    """On a busy machine none of them is quick. The clock goes on by ``each`` seconds with every question."""
    for number in range(5):
        _waiting(lab, f"p{number}", OF_PLUGIN)
    clock, total = [0.0], pipeline_list._Question._total

    def asked(question: Any, bound: Any) -> Any:
        clock[0] += each
        if each > pipeline_list._LAG_SECONDS:
            question.is_over.wait()
        return total(question, bound)

    monkeypatch.setattr(pipeline_list._Question, "_total", asked)
    monkeypatch.setattr(pipeline_list, "_THREADS", 1)
    monkeypatch.setattr(pipeline_list, "time", SimpleNamespace(**vars(time) | {"monotonic": lambda: clock[0]}))
    lags = _lags(run("pipelines", "list", "--json"))
    assert [lag for lag in lags.values() if lag] == [{"records": 1000}] * known


def test_list_asks_no_source_if_told_not_to(run, lab: Lab) -> None:
    _waiting(lab, "hanging", OF_PLUGIN)
    (lab.root / "hang").touch()
    ran = run("pipelines", "list", "--no-lag", "--json")
    assert (_lags(ran), ran.envelope["summary"]) == ({"hanging": None}, "1 pipeline")
    assert "lag" not in run("pipelines", "list", "--no-lag").out
    assert not (lab.root / "hangs").exists()
