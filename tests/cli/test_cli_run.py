"""``run``: what prevents its start, how it ends, and what it leaves in the files."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import whole_lines

LIVE_HEADER = "records/s"


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# -- nothing is started ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_spark_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that reaches Spark in this process is a mistake: it would close the tests' own session."""

    def refuse(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr("conduit_dagster.cli.verb_session.open_session", refuse)


def test_findings_are_printed_and_nothing_is_started(run, project: Path, pipeline) -> None:
    (project / "pipelines" / "bad.yaml").write_text(pipeline("bad").replace("json.decode", "json.decod"))
    ran = run("run", "--once")
    assert ran.code == 2
    assert "error plugin.unknown" in ran.err
    assert "did you mean json.decode?" in ran.err
    assert not (project / ".conduit").exists()


def test_a_finding_is_told_once(run, project: Path, pipeline) -> None:
    (project / "pipelines" / "bad.yaml").write_text(pipeline("bad").replace("json.decode", "json.decod"))
    ran = run("run", "--once")
    assert (ran.out + ran.err).count("did you mean json.decode?") == 1
    assert "nothing was started: 1 error in the pipelines' files\n" in ran.err


def test_findings_are_in_the_envelope(run, project: Path, pipeline) -> None:
    (project / "pipelines" / "bad.yaml").write_text(pipeline("bad").replace("json.decode", "json.decod"))
    envelope = run("run", "--once", "--json").envelope
    assert envelope["error"]["code"] == "validation.failed"
    assert [row["code"] for row in envelope["result"]["findings"]] == ["plugin.unknown"]
    assert envelope["result"]["pipelines"] == []


def test_an_option_that_is_not_there_yet_refuses_the_whole_run_by_name(run, project: Path, pipeline) -> None:
    text = pipeline("later", "delivery: {drift: true}")
    (project / "pipelines" / "later.yaml").write_text(text)
    ran = run("run", "--once", "--json")
    assert ran.code == 2
    assert ran.envelope["error"]["code"] == "option.not_yet"
    assert "delivery.drift: true" in ran.envelope["error"]["message"]
    assert "docs/chained-pipelines.md" in ran.envelope["error"]["fix"]
    assert ran.envelope["error"]["node"] == "later"
    assert not (project / ".conduit").exists()


def test_a_missing_file_and_an_empty_folder_are_clear_errors(run, project: Path) -> None:
    assert run("run", "nowhere.yaml", "--json").envelope["error"]["code"] == "validation.failed"
    (project / "pipelines" / "orders.yaml").unlink()
    ran = run("run")
    assert ran.code == 2
    assert "there is no pipeline to run" in ran.err
    assert "conduit-dagster init" in ran.err


def test_a_file_without_pipelines_is_named(run, project: Path) -> None:
    (project / "empty.yaml").write_text("# none yet\n")
    error = run("run", "empty.yaml", "--json").envelope["error"]
    assert (error["code"], error["message"]) == ("usage.nothing_to_run", "there is no pipeline to run in empty.yaml")


def test_a_project_whose_pipelines_are_all_stopped_has_nothing_to_run(run, project: Path, pipeline) -> None:
    (project / "pipelines" / "orders.yaml").write_text(pipeline(extra="status: stopped"))
    ran = run("run", "--json")
    assert (ran.code, ran.envelope["error"]["code"]) == (2, "usage.nothing_to_run")


def test_a_stopped_pipeline_with_mistakes_keeps_nobody_from_running(run, project: Path, pipeline) -> None:
    bad = pipeline("bad", "status: stopped").replace("json.decode", "json.decod")
    (project / "pipelines" / "bad.yaml").write_text(bad)
    ran = run("run", "--once", "--json")
    assert ran.envelope["error"]["code"] == "environment.spark"
    assert "Spark was asked for" in ran.envelope["error"]["message"]


def test_without_java_the_exit_code_is_3(run, project: Path, monkeypatch) -> None:
    monkeypatch.setattr("conduit_dagster.spark.java.find_java", lambda env=None: None)
    ran = run("run", "--once", "--json")
    assert (ran.code, ran.envelope["error"]["code"]) == (3, "environment.java_missing")
    ran = run("run", "--once")
    assert ran.err.count("error environment.java_missing") == 1
    assert "Traceback" not in ran.err


def test_a_state_store_that_cannot_be_opened_is_exit_code_3(run, project: Path) -> None:
    (project / ".conduit").write_text("in the way")
    ran = run("run", "--once", "--json")
    assert ran.code == 3, ran.envelope


@pytest.mark.slow
def test_a_spark_url_that_spark_does_not_know_is_named(shell, project: Path) -> None:
    ran = shell.run("run", "--once", env={**os.environ, "CONDUIT_SPARK_URL": "sparkle://x"})
    assert ran.code == 3
    assert "Spark does not start: Could not parse Master URL: 'sparkle://x'" in ran.err


# -- whole runs -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_once_drains_all_pipelines_side_by_side(shell, project: Path, pipeline) -> None:
    (project / "pipelines" / "second.yaml").write_text(pipeline("second"))
    (project / "pipelines" / "off.yaml").write_text(pipeline("off", "status: stopped"))
    ran = shell.run("run", "--once", "--json")
    assert ran.code == 0, ran.err
    pipelines = {one["id"]: one for one in ran.envelope["result"]["pipelines"]}
    assert list(pipelines) == ["orders", "second"]
    for name, one in pipelines.items():
        assert (one["status"], one["error"]) == ("stopped", None)
        assert one["records"] == {"read": 3, "acked": 2, "filtered": 0, "nacked": 1, "dead_lettered": 1}
        assert one["destinations"] == [{"id": "out", "delivered": 2}]
        assert lines(project / f"{name}.jsonl") == [{"id": 1}, {"id": 2}]
        assert len(lines(project / f"{name}-dead.jsonl")) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_in_a_pipe_there_is_a_summary_and_no_escape_codes(shell, project: Path, pipeline) -> None:
    stopping = pipeline("first-nack").replace("window-size: 0", "window-size: 1")
    (project / "pipelines" / "first-nack.yaml").write_text(stopping)
    ran = shell.run("run", "--once", env={**os.environ, "FORCE_COLOR": "1"})
    assert ran.code == 1
    assert "\x1b" not in ran.out + ran.err
    assert "\r" not in ran.out + ran.err
    assert LIVE_HEADER not in ran.out
    assert "orders: finished (all input read)" in ran.out
    assert "3 read, 2 acked (of them 0 filtered), 1 nacked, 1 dead-lettered" in ran.out
    assert "first-nack: degraded" in ran.out
    for told in (
        "since:  20",
        "safe:   1 record was acked in this run; nothing is lost",
        "pipelines history first-nack",
    ):
        assert told in ran.out
    assert "error json.decode.invalid" in ran.out
    assert "node:   first-nack:decode" in ran.out
    assert "Traceback" not in ran.out + ran.err


@pytest.mark.slow
def test_a_log_destination_prints_on_stderr_in_the_projects_format(shell, project: Path, pipeline) -> None:
    (project / "conduit.yaml").write_text("log: {format: json}\n")
    text = pipeline().replace("plugin: file\n        settings: {path: ./orders.jsonl, sdk", "plugin: log #")
    (project / "pipelines" / "orders.yaml").write_text(text)
    ran = shell.run("run", "--once", "--json", "--verbose")
    assert ran.envelope["ok"]
    logged = [json.loads(line) for line in ran.err.splitlines() if '"connector": "out"' in line]
    assert [json.loads(row["record"])["payload"]["after"] for row in logged] == [{"id": 1}, {"id": 2}]
    assert "log4j" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "user"), (signal.SIGTERM, "system")])
@pytest.mark.usefixtures("connected")
def test_a_signal_stops_a_continuous_run_gracefully(shell, project: Path, number: int, reason: str) -> None:
    process = shell.spawn("run", "--json")
    shell.wait_until(process, lambda: len(whole_lines(project / "orders.jsonl")) == 2, "two records are delivered")
    with (project / "in.jsonl").open("a") as file:
        file.write('{"id":3}\n')
    shell.wait_until(process, lambda: len(whole_lines(project / "orders.jsonl")) == 3, "the third record is delivered")
    process.send_signal(number)
    ran = shell.ended(process)
    assert ran.code == 0, ran.err
    (one,) = ran.envelope["result"]["pipelines"]
    assert (one["status"], one["reason"], one["records"]["read"]) == ("stopped", reason, 4)
    assert "Traceback" not in ran.err
    status = shell.run("pipelines", "list", "--json").envelope["result"]["pipelines"][0]
    assert (status["status"], status["reason"]) == ("stopped", reason)


FAILING = """
version: "2.2"
pipelines:
  - id: failing
    recovery: {min-delay: 100ms, max-retries: 2}
    connectors:
      - {id: in, type: source, plugin: chaos, settings: {records: 5, fail-on: read, times: always}}
      - {id: out, type: destination, plugin: chaos, settings: {path: ./failing.jsonl}}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_a_pipeline_that_is_given_up_is_logged_while_the_others_go_on(shell, project: Path) -> None:
    (project / "pipelines" / "failing.yaml").write_text(FAILING)
    process = shell.spawn("run", "--json")
    logged = next(line for line in process.stderr if "status=degraded" in line)
    assert "pipeline=failing" in logged and "code=connector.failed" in logged
    process.send_signal(signal.SIGINT)
    ended = {one["id"]: one["status"] for one in shell.ended(process).envelope["result"]["pipelines"]}
    assert ended == {"failing": "degraded", "orders": "stopped"}


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_a_run_ends_when_a_pipeline_is_given_up_if_asked_to(shell, project: Path) -> None:
    """Not while it is being restarted."""
    (project / "conduit.yaml").write_text("pipelines: {exit-on-degraded: true}\n")
    (project / "pipelines" / "failing.yaml").write_text(FAILING)
    ran = shell.run("run", "--json")
    assert ran.code == 1, ran.err
    ended = {one["id"]: (one["status"], one["reason"]) for one in ran.envelope["result"]["pipelines"]}
    assert ended == {"failing": ("degraded", ""), "orders": ("stopped", "system")}
    assert "Traceback" not in ran.err
    told = shell.run("pipelines", "history", "failing", "--json").envelope["result"]["events"]
    again = ["failed", "waiting", "restarted"]
    life = [one["event"] for one in told if one["event"] in {"started", *again, "degraded"}]
    assert life == ["started", *again, *again, "failed", "degraded"]


SLOW_PLUGIN = """
import time
from conduit_dagster.sdk import Processor

class Slow(Processor):
    name = "slow"

    def process(self, record):
        open("reached", "w").close()
        time.sleep(600)
        return record
"""


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_a_second_signal_stops_by_force(shell, project: Path, pipeline) -> None:
    (project / "plugins").mkdir()
    (project / "plugins" / "slow.py").write_text(SLOW_PLUGIN.replace('"reached"', repr(str(project / "reached"))))
    text = pipeline().replace(
        "{id: decode, plugin: json.decode, settings: {field: .Payload.After}}", "{id: s, plugin: slow}"
    )
    (project / "pipelines" / "orders.yaml").write_text(text)
    process = shell.spawn("run", "--json")
    shell.wait_until(process, (project / "reached").exists, "the processor has a record")
    process.send_signal(signal.SIGINT)
    next(line for line in process.stderr if "stopping: the step at hand" in line)
    process.send_signal(signal.SIGTERM)
    ran = shell.ended(process, 60)
    assert ran.code == 143, ran.err
    (one,) = ran.envelope["result"]["pipelines"]
    assert (one["status"], one["error"]["code"]) == ("degraded", "pipeline.forced_stop")
    assert lines(project / "orders.jsonl") == []


@pytest.mark.slow
def test_a_signal_while_spark_starts_ends_the_run_before_it_began(shell, project: Path) -> None:
    process = shell.spawn("run", "--json")
    # the state store is made right before Spark is started, under our handlers
    shell.wait_until(process, (project / ".conduit" / "state.db").exists, "there is a state store")
    process.send_signal(signal.SIGINT)
    ran = shell.ended(process)
    assert ran.code == 0, ran.err
    (one,) = ran.envelope["result"]["pipelines"]
    assert (one["status"], one["reason"]) == ("stopped", "user")


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_a_terminal_shows_live_progress(shell, project: Path) -> None:
    with shell.on_terminal("run") as (process, terminal):
        terminal.read(lambda text: re.search(r"orders\s+running\s+3\s", text))
        process.send_signal(signal.SIGINT)
        shown = terminal.read()
        assert process.wait(60) == 0
    assert LIVE_HEADER in shown
    assert "orders: stopped by the user" in shown
