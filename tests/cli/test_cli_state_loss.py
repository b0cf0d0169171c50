"""A project whose state store is lost: every verb reports it, and nothing is delivered again until that is accepted."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

READING = [("pipelines", "list"), ("offsets", "list", "orders"), ("positions", "show"), ("dlq", "list"), ("metrics",)]


def lose(project: Path) -> None:
    for file in (project / ".conduit").glob("state.db*"):
        file.unlink()


def empty(project: Path) -> None:
    lose(project)
    (project / ".conduit" / "state.db").touch()


def lines(project: Path) -> list[str]:
    return (project / "orders.jsonl").read_text().splitlines()


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("lost", [lose, empty])
def test_a_lost_store_is_refused_until_it_is_accepted(run, project: Path, lost: Callable[[Path], Any]) -> None:
    assert run("run", "--once").code == 0
    lost(project)
    before = sorted(file.name for file in (project / ".conduit").iterdir())
    for words in (("run", "--once"), ("pipelines", "start", "orders"), *READING):
        ran = run(*words, "--json")
        assert (ran.code, ran.envelope["error"]["code"]) == (3, "state.lost"), words
        assert "--accept-new-state" in ran.envelope["error"]["fix"]
    (state,) = [one for one in run("doctor", "--json").envelope["result"]["checks"] if one["name"] == "state"]
    assert (state["level"], "missing or empty" in state["message"]) == ("fail", True)
    assert len(lines(project)) == 2
    assert sorted(file.name for file in (project / ".conduit").iterdir()) == before
    assert run("run", "--once", "--accept-new-state").code == 0
    assert len(lines(project)) == 4
    assert run("run", "--once").code == 0
    assert len(lines(project)) == 4


@pytest.mark.usefixtures("shared_session")
def test_the_environment_accepts_as_well(run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For Dagster, and for verbs without the option."""
    assert run("run", "--once").code == 0
    lose(project)
    monkeypatch.setenv("CONDUIT_STATE_ACCEPT_NEW", "true")
    assert run("pipelines", "start", "orders").code == 0
    monkeypatch.delenv("CONDUIT_STATE_ACCEPT_NEW")
    assert run("pipelines", "list").code == 0


def test_a_first_run_and_a_clone_need_no_word(run, project: Path) -> None:
    """A clone has pipelines, but no home."""
    for words in READING[:1]:
        assert run(*words).code == 0
    assert not (project / ".conduit").exists()
    assert run("pipelines", "start", "orders").code == 0


@pytest.mark.usefixtures("shared_session")
def test_what_is_in_the_home_is_its_users_only(run, project: Path) -> None:
    """Also what Spark's workers write there, such as the commit log. The user's output follows the umask."""
    file = project / "pipelines" / "orders.yaml"
    text = file.read_text().replace("  - id: orders\n", "  - id: orders\n    delivery: {log: records}\n")
    file.write_text(text)
    assert run("run", "--once").code == 0
    home = project / ".conduit"
    found = [home, *home.rglob("*")]
    suffixes = {one.suffix for one in found if one.is_file()}
    assert {".db", ".parquet"} <= suffixes, "there is a store, and a log or an archive"
    assert [str(one) for one in found if one.stat().st_mode & 0o077] == []
    assert (project / "orders.jsonl").stat().st_mode & 0o777 == 0o644


LOGGED = """
version: "2.2"
pipelines:
  - id: orders
    delivery: {log: records}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out/, sdk.record.format: payload/json}}
    processors:
      - {id: decode, plugin: json.decode, settings: {field: .Payload.After}}
      - {id: once, plugin: deduplicate, settings: {key: after.n, window.records: "9"}}
"""


@pytest.mark.usefixtures("shared_session")
def test_an_older_store_loses_no_record_that_gets_the_offset_of_a_delivered_one(run, folder: Path) -> None:
    """The source gives other records than to the lost store, as one that can't be read twice always does.

    What a processor remembers stays.
    """

    def ran(number: int, *words: str) -> None:
        (folder / "in" / f"{number}.jsonl").write_text(json.dumps({"n": number % 10}) + "\n")
        assert run("run", "--once", *words).code == 0

    for name, text in {"conduit.yaml": "{}\n", "pipelines/orders.yaml": LOGGED, "in/.keep": ""}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    ran(1)
    with closing(sqlite3.connect(folder / ".conduit" / "state.db")) as store:
        store.execute("VACUUM INTO 'backup.db'")
    ran(2)
    lose(folder)
    shutil.copy("backup.db", folder / ".conduit" / "state.db")
    (folder / "in" / "2.jsonl").unlink()
    ran(3, "--accept-new-state")
    ran(4)
    ran(11)
    assert sorted(json.loads(file.read_text())["n"] for file in (folder / "out").glob("*/*.jsonl")) == [1, 2, 3, 4]
    events = run("pipelines", "history", "orders", "--json").envelope["result"]["events"]
    assert [event["event"] for event in events].count("generation_renewed") == 1
