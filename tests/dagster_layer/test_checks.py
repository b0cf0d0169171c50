"""The results of the checks for given facts, without a run."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder

from conduit_dagster.assets import events
from conduit_dagster.assets.asset_checks import CheckResult, readable_verdicts, verdicts
from conduit_dagster.assets.events import Observer, RunSnapshot, acks_materialization
from conduit_dagster.assets.run_op import RunConfig
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import BoundPipeline, open_catalogue
from conduit_dagster.engine.report import PendingRestart, RunProgress, RunResult
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.recovery.policy import FRESH, PipelineStatus

WINDOW = "{plugin: builtin:file, window-size: 10, window-nack-threshold: 1, settings: {path: ./dead.jsonl}}"


@pytest.fixture
def bound(folder: Folder) -> BoundPipeline:
    folder.numbers(queue=WINDOW)
    found = open_catalogue(Project.find(folder.root, {})).get("numbers")
    assert found is not None
    return found


def _look(waited: float = 0, read: int = 100, nacked: int = 0, **more: Any) -> RunSnapshot:
    return RunSnapshot(RunProgress(read=read, nacked=nacked), 0.0, waited, **more)


def _ended(error: ConduitError, restart: PendingRestart | None = None) -> RunResult:
    return RunResult("numbers", "degraded" if restart is None else "recovering", "", error, RunProgress(), restart)


def _passed(verdicts: Any) -> dict[str, bool]:
    found: list[CheckResult] = list(verdicts)
    return {verdict.name: verdict.passed for verdict in found}


@pytest.mark.parametrize(("nacked", "passed"), [(0, True), (10, True), (11, False)])
def test_the_nack_rate_is_held_against_the_threshold(bound: BoundPipeline, nacked: int, passed: bool) -> None:
    """One of ten is allowed."""
    assert _passed(verdicts(bound, _look(nacked=nacked), 60))["nack_rate"] is passed


def test_an_exceeded_threshold_fails_the_rate_whatever_it_is(bound: BoundPipeline) -> None:
    """The nack that exceeded it was not counted: its record is read again."""
    error = FatalError("too many", code="nacks.threshold_exceeded")
    assert not _passed(verdicts(bound, _look(), 60, _ended(error)))["nack_rate"]


ONE = {"in": (1, "bytes")}


@pytest.mark.parametrize(
    ("lag", "waited", "passed"), [({}, 99, True), ({"in": (0, "bytes")}, 99, True), (ONE, 59, True), (ONE, 61, False)]
)
def test_the_acks_lag_when_something_waits_for_long(
    bound: BoundPipeline, lag: dict[str, tuple[int, str]], waited: float, passed: bool
) -> None:
    assert _passed(verdicts(bound, _look(waited, lag=lag), 60))["ack_lag"] is passed


def test_the_lag_of_the_acks_counts_what_is_logged_and_not_delivered(bound: BoundPipeline) -> None:
    look = _look(99, lag={"in": (0, "bytes")}, sources={"in": {"position": 7, "undelivered": 7}})
    shown = acks_materialization(AssetKeys("numbers"), look).metadata
    assert (shown["lag_records"].value, shown["lag_bytes"].value) == (7, 0)
    lag = next(one for one in verdicts(bound, look, 60) if one.name == "ack_lag")
    assert (lag.passed, lag.metadata["logged_undelivered"]) == (False, 7)


def test_the_limit_of_the_acks_is_the_runs_then_the_files_then_the_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CONDUIT_MAX_ACK_LAG", raising=False)
    assert RunConfig().seconds("max_ack_lag") == 300
    monkeypatch.setenv("CONDUIT_MAX_ACK_LAG", "2m")
    assert RunConfig().seconds("max_ack_lag") == 120
    assert RunConfig().seconds("max_ack_lag", 60.0) == 60
    assert RunConfig(max_ack_lag="30s").seconds("max_ack_lag", 60.0) == 30


@pytest.mark.parametrize(
    ("lag", "failing", "waited", "kept"),
    [
        ({}, [], 99, True),
        ({"in": (0, "bytes")}, [], 99, True),
        (ONE, [], 59, True),
        (ONE, [], 60, False),
        ({}, ["in"], 59, True),
        ({}, ["in"], 60, False),
    ],
)
def test_a_lag_is_kept_while_nothing_waits_or_for_a_while(
    lag: dict[str, tuple[int, str]], failing: list[str], waited: float, kept: bool
) -> None:
    """Records may be waiting at a source that fails when asked."""
    assert _look(waited, lag=lag, failing=failing).keeps(60) is kept


def test_what_came_after_a_quiet_time_has_not_waited_as_long(
    folder: Folder, bound: BoundPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(0, 100, 10))
    own = SimpleNamespace(**{**vars(time), "monotonic": lambda: float(next(seconds))})
    monkeypatch.setattr(events, "time", own)
    observer = Observer(bound, folder.store)
    first, second = observer.snapshot(), observer.snapshot()
    assert second.waiting and second.waited > first.waited
    content = (folder.root / "in.jsonl").read_bytes()
    (folder.root / "in.jsonl").write_bytes(b"")
    quiet = observer.snapshot()
    assert not quiet.waiting and quiet.waited > second.waited
    (folder.root / "in.jsonl").write_bytes(content)
    assert observer.snapshot().waited < quiet.waited


def test_what_waits_after_a_failed_run_is_lag(bound: BoundPipeline) -> None:
    look = _look(lag={"in": (1, "bytes")})
    assert not _passed(verdicts(bound, look, 60, _ended(TransientError("gone"))))["ack_lag"]


@pytest.mark.parametrize(("letters", "passed"), [(0, True), (4, False)])
def test_the_dead_letters_fail_while_one_is_open(bound: BoundPipeline, letters: int, passed: bool) -> None:
    look = _look(reasons=[{"node": "numbers:bad", "code": "processor.error", "letters": letters}])
    assert _passed(verdicts(bound, look, 60))["no_dead_letters"] is passed


def _status(bound: BoundPipeline, result: RunResult | None) -> CheckResult:
    (found,) = [one for one in verdicts(bound, _look(), 60, result) if one.name == "status"]
    return found


def test_the_status_shows_a_pending_restart(bound: BoundPipeline) -> None:
    restart = PendingRestart(7, 3, 4.0, 1_700_000_000_000_000_000, FRESH)
    verdict = _status(bound, _ended(TransientError("gone", code="x.gone"), restart))
    assert not verdict.passed
    assert verdict.description == (
        "recovering: gone; restart 3 after 4 s; "
        "to restart it now: conduit-dagster pipelines start numbers, or the job conduit__start"
    )
    assert (verdict.metadata["attempt"], verdict.metadata["error_code"]) == (3, "x.gone")


def test_the_status_fails_of_what_is_degraded_and_not_of_a_run_that_was_not_needed(bound: BoundPipeline) -> None:
    degraded = _status(bound, _ended(FatalError("no", code="x.no", fix="do this")))
    assert (degraded.passed, degraded.metadata["fix"]) == (False, "do this")
    assert "next_restart_at" not in degraded.metadata
    assert degraded.severity is dg.AssetCheckSeverity.ERROR
    assert _status(bound, _ended(TransientError("another has it", code="lease.held"))).passed
    assert _status(bound, None).passed


def test_the_status_of_what_is_degraded_says_what_to_do_and_to_type(bound: BoundPipeline) -> None:
    degraded = _status(bound, _ended(FatalError("no", code="x.no", fix="do this", node="numbers:in", place="in:7")))
    assert degraded.description == (
        "degraded: no; fix: do this; then: conduit-dagster pipelines start numbers, or the job conduit__start"
    )
    facts = {name: degraded.metadata[name] for name in ("node", "place", "fix", "command")}
    command = "conduit-dagster pipelines start numbers"
    assert facts == {"node": "numbers:in", "place": "in:7", "fix": "do this", "command": command}


def _sources(bound: BoundPipeline, look: RunSnapshot, result: RunResult | None = None) -> dict[str, bool]:
    return {verdict.source: verdict.passed for verdict in readable_verdicts(bound, look, result)}


def test_a_source_is_readable_once_something_shows_it(bound: BoundPipeline) -> None:
    """A run that is stopped or fails before it reaches the source leaves the check unchanged."""
    unread, lag = _look(read=0), _look(read=0, lag={"in": (0, "bytes")})
    read = RunSnapshot(RunProgress(sources={"in": 3}), 0.0, 0.0)
    stopped = RunResult("numbers", PipelineStatus.STOPPED, "user", None, RunProgress())
    elsewhere = _ended(TransientError("full", node="numbers:out"))
    gone = _ended(TransientError("gone", node="numbers:in", fix="create it"))
    assert [_sources(bound, look) for look in (unread, lag, read)] == [{}, {"in": True}, {"in": True}]
    assert [_sources(bound, lag, result) for result in (stopped, elsewhere)] == [{}, {}]
    assert _sources(bound, read, elsewhere) == {"in": True}
    assert _sources(bound, read, gone) == {"in": False}
    assert _sources(bound, unread, replace(stopped, reason="system", drained=True)) == {"in": True}
