"""``pipelines history``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lab.as_owner import owned

from conduit_dagster.config.project import Project
from conduit_dagster.engine.operate.source_positions import moment
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.status_store import RunStart

HOUR = 3600 * 1_000_000_000
NOW = 1_785_600_000 * 1_000_000_000
ERROR = {
    "code": "chaos.injected",
    "message": "postgresql://me:hunter2@db/x is away",
    "node": "orders:in",
    "place": None,
    "fix": None,
    "fatal": False,
}


@pytest.fixture
def failing(project: Path) -> Path:
    """A project whose pipeline failed, and waits for its restart."""
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.status.failed(ERROR, Policy(min_delay=4.0), "first")
    return project


def test_the_newest_is_last_and_each_says_what_happened(run, failing: Path) -> None:
    ran = run("pipelines", "history", "orders", "--json")
    assert ran.code == 0
    result = ran.envelope["result"]
    says = [one["says"] for one in result["events"]]
    assert says == [
        "provisioned: pipelines/orders.yaml",
        "started: as first",
        "failed: chaos.injected in orders:in: postgresql://me:***@db/x is away",
        "waiting: restart 1 in 4s",
    ]
    failed = result["events"][2]
    assert (failed["event"], failed["detail"]["attempt"], result["more"]) == ("failed", 0, False)
    assert datetime.fromisoformat(failed["at"]).timestamp() == pytest.approx(failed["at_ns"] / 1e9, abs=1.1)


@pytest.fixture
def kiritimati(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone that is ahead of all others."""
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_times_are_shown_and_taken_in_one_zone(run, failing: Path, kiritimati: None) -> None:
    """What one verb shows, a log line or an alert, is what another one takes, wherever it is typed."""
    ran = run("pipelines", "history", "orders")
    shown = ran.out.splitlines()[1].split()[0]
    assert abs(datetime.fromisoformat(shown).timestamp() - time.time()) < 600 and shown.endswith("Z")
    assert moment(shown, NOW, "--since") == moment(shown.removesuffix("Z"), NOW, "--since")
    assert moment(shown.replace("Z", "+14:00"), NOW, "--since") == moment(shown, NOW, "--since") - 14 * HOUR


def test_for_people_it_is_a_table(run, failing: Path) -> None:
    ran = run("pipelines", "history", "orders")
    lines = ran.out.splitlines()
    assert [line.split(None, 1)[1].split(":")[0] for line in lines[1:5]] == [
        "provisioned",
        "started",
        "failed",
        "waiting",
    ]
    assert lines[-1] == "4 events"
    assert "hunter2" not in ran.out


def test_a_limit_says_that_there_are_more(run, failing: Path) -> None:
    ran = run("pipelines", "history", "orders", "--limit", "2", "--json")
    assert [one["event"] for one in ran.envelope["result"]["events"]] == ["failed", "waiting"]
    assert ran.envelope["result"]["more"]
    assert run("pipelines", "history", "orders", "--limit", "2").out.endswith("older ones with --limit 4\n")
    assert run("pipelines", "history", "orders", "--limit", "0").code == 2


def test_since_leaves_older_ones_out(run, failing: Path) -> None:
    assert len(run("pipelines", "history", "orders", "--since", "1h", "--json").envelope["result"]["events"]) == 4
    ran = run("pipelines", "history", "orders", "--since", "2999-01-01", "--json")
    assert (ran.code, ran.envelope["result"]["events"]) == (0, [])
    assert ran.envelope["summary"] == "nothing happened to orders since 2999-01-01"
    wrong = run("pipelines", "history", "orders", "--since", "yesterday", "--json")
    assert (wrong.code, wrong.envelope["error"]["code"]) == (2, "usage.since")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2h", NOW - 2 * HOUR),
        ("90d", NOW - 90 * 24 * HOUR),
        ("1d12h30m", NOW - 36 * HOUR - HOUR // 2),
        ("99999d", 0),
        ("2026-08-01T10:00:00Z", 1_785_578_400 * 1_000_000_000),
        ("2026-08-01T12:00:00+02:00", 1_785_578_400 * 1_000_000_000),
        ("2026-08-01", int(datetime(2026, 8, 1, tzinfo=UTC).timestamp()) * 1_000_000_000),
    ],
)
def test_the_ways_to_say_since(text: str, ns: int) -> None:
    assert moment(text, NOW, "--since") == ns


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2x", "d", "12:00:00Z", "2026-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(FatalError) as caught:
        moment(text, NOW, "--since")
    assert caught.value.code == "usage.since"


def test_a_pipeline_that_does_not_exist_is_one_clear_error(run, failing: Path) -> None:
    ran = run("pipelines", "history", "order", "--json")
    assert (ran.code, ran.envelope["error"]["code"]) == (2, "usage.unknown_pipeline")
    assert ran.envelope["error"]["fix"] == "did you mean orders?"
    words = run("pipelines", "history", "order")
    assert (words.code, words.out) == (2, "")
    assert words.err.startswith("error usage.unknown_pipeline: there is no pipeline order in this project\n")


def test_one_that_never_ran_has_no_history_and_no_store_is_made(run, project: Path) -> None:
    ran = run("pipelines", "history", "orders", "--json")
    assert (ran.code, ran.envelope["result"]["events"]) == (0, [])
    assert ran.envelope["summary"] == "orders never ran"
    assert not (project / ".conduit").exists()


def test_it_outlives_the_pipelines_file(run, failing: Path) -> None:
    (failing / "pipelines" / "orders.yaml").unlink()
    assert len(run("pipelines", "history", "orders", "--json").envelope["result"]["events"]) == 4


def test_the_settings_say_how_much_there_is(run, failing: Path) -> None:
    (failing / "conduit.yaml").write_text("state: {history: {keep: 90d, most: 3}}\n")
    assert len(run("pipelines", "history", "orders", "--json").envelope["result"]["events"]) == 3


@pytest.mark.parametrize("text", ["keep: 0d", "keep: 0s", "most: 0", "keep: 90", "keep: -1d", "most: -1"])
def test_keeping_nothing_is_refused(run, project: Path, text: str) -> None:
    (project / "conduit.yaml").write_text(f"state: {{history: {{{text}}}}}\n")
    ran = run("validate", "--json")
    assert ran.code == 2
    assert "config.field_invalid" in json.dumps(ran.envelope)


@pytest.mark.parametrize(("text", "seconds"), [("90d", 7_776_000.0), ("12h", 43_200.0), ("1d1s", 86_401.0)])
def test_a_time_to_keep_may_have_days(project: Path, text: str, seconds: float) -> None:
    (project / "conduit.yaml").write_text(f"state.history.keep: {text}\n")
    found = Project.find(project, {})
    assert (found.findings, found.settings.state.history.keep) == ((), seconds)


@pytest.mark.parametrize("words", ["pipelines history", "pipelines stop", "offsets list", "positions show", "dlq list"])
def test_a_file_that_is_not_there_is_said_by_verbs_that_need_none(run, failing: Path, words: str) -> None:
    """They read the state store: a mistyped path changed what they knew of the pipeline without a word."""
    verb = words.split()
    (failing / "broken.yaml").write_text("pipelines: [")
    assert run(*verb, "orders", "--file", "broken.yaml").code == 0
    error = run(*verb, "orders", "--file", "nofile.yaml", "--json").envelope["error"]
    assert (error["code"], error["place"]) == ("config.file_unreadable", "nofile.yaml")
    assert error["fix"].startswith("check the path")
