"""``top``, and what ``pipelines list`` says in words."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from lab.as_owner import ERROR, owned

from conduit_dagster.cli.terminal import ago, due, span
from conduit_dagster.readable import when
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.status_store import RunStart


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (40, "40 s"), (59.7, "1 min"), (3_599, "59 min"), (7_300, "2 h"), (10**6, "11 d")],
)
def test_a_length_of_time_has_one_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_moments() -> None:
    now = 10**18
    assert (ago(now - 5 * 10**9, now), ago(0, now)) == ("5 s ago", "")
    assert (due(now + 40 * 10**9, now), due(now - 1, now)) == ("in 40 s", "now")
    # nobody does it: the daemon or a sensor is off, or the file is gone
    assert (due(now - 59 * 10**9, now), due(now - 7200 * 10**9, now)) == ("now", "due 2 h ago")


def test_top_prints_the_table_once_in_a_pipe(run, failed: Path) -> None:
    """Also pipelines that never ran; it starts nothing and waits for one interval."""
    begun = time.monotonic()
    ran = run("top", "--interval", "0.3")
    assert 0.3 <= time.monotonic() - begun < 30
    assert ran.code == 0
    assert "degraded" in ran.out
    assert "s ago" in ran.out
    (row,) = run("top", "--interval", "0.2", "--json").envelope["result"]["pipelines"]
    zero = ("records", "delivered", "read_per_second", "delivered_per_second", "dead_letters")
    assert (row["id"], *(row[name] for name in zero)) == ("orders", 0, 0, 0, 0, 0)


def test_top_without_a_state_store(run, project: Path) -> None:
    (row,) = run("top", "--interval", "0.2", "--json").envelope["result"]["pipelines"]
    assert (row["id"], row["status"], row["active_ns"]) == ("orders", None, 0)
    assert not (project / ".conduit").exists()


@pytest.mark.slow
def test_top_on_a_terminal_follows_what_begins_later(shell, project: Path) -> None:
    """The very first run creates the state store while ``top`` is running. Ctrl-C ends it."""
    with shell.on_terminal("top", "--interval", "0.2") as (process, terminal):
        assert re.search(r"orders\s+never ran", terminal.read(lambda text: "never ran" in text))
        with owned(project) as store:
            store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        assert re.search(r"orders\s+running", terminal.read(lambda text: "running" in text))
        process.send_signal(signal.SIGINT)
        terminal.read()
        assert process.wait(60) == 0


def test_list_shows_short_paths_and_when_something_happened(run, failed: Path) -> None:
    ran = run("pipelines", "list")
    assert " pipelines/orders.yaml " in ran.out
    assert "s ago" in ran.out
    assert str(failed) not in ran.out


def test_list_says_in_how_long_a_pipeline_restarts(run, project: Path) -> None:
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.status.failed({**ERROR, "fatal": False}, Policy(4_000.0, 4_000.0), "first")
    assert "recovering, restart 1 in 1 h" in run("pipelines", "list").out
    (row,) = run("pipelines", "list", "--json").envelope["result"]["pipelines"]
    assert row["restart"]["at"] == when(row["restart"]["at_ns"])
