"""A project whose state store is lost: every verb reports it, and nothing is delivered again until that is accepted."""

from __future__ import annotations

from collections.abc import Callable
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
