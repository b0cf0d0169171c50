"""Decision on alerts: a pure function of the reported state and of the pipelines' current state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.readable import when
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.secret_values import masked
from conduit_dagster.state.database import reading
from conduit_dagster.state.history import gone
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_state import NEVER, recovery_rows
from conduit_dagster.state.tables import consumers

_ERROR: Final = ("code", "message", "node", "place", "fix")
_LONGEST = 1000
_SLACK: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def body(alert: Alert, project: str, now_ns: int) -> dict[str, Any]:
    """Return the alert as JSON, without secrets. ``text`` is for people, in Slack's markup."""
    one = alert.standing
    error = None if one.error is None else {name: _masked(one.error.get(name)) for name in _ERROR}
    return {
        "text": _slack(_degraded(alert, error) if alert.kind == "degraded" else _letters_json(alert)),
        "alert": alert.kind,
        "project": project,
        "pipeline": one.pipeline,
        "at": when(now_ns),
        "status": one.status,
        "reason": one.reason,
        "error": error,
        "dead_letters": {
            "total": one.dead_letters,
            "new": alert.new,
            "since": when(alert.since_ns) if alert.since_ns else None,
        },
    }


def _degraded(alert: Alert, error: dict[str, Any] | None) -> str:
    head = f"{alert.standing.pipeline} is degraded"
    if error is None:
        return head
    node = f" in {error['node']}" if error["node"] else ""
    fix = f"\nfix: {error['fix']}" if error["fix"] else ""
    return f"{head}: {error['code']}{node}: {_short(error['message'])}{_short(fix)}"


def _letters_json(alert: Alert) -> str:
    one = alert.standing
    noun = "dead letter" if alert.new == 1 else "dead letters"
    return f"{one.pipeline}: {alert.new:,} new {noun} since {when(alert.since_ns)}, {one.dead_letters:,} in all"


def _masked(value: Any) -> Any:
    return masked(value) if isinstance(value, str) else value


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _slack(text: str) -> str:
    """Escape text for Slack: a record's text must not notify the whole channel."""
    return "".join(_SLACK.get(character, character) for character in text)


@dataclass(frozen=True)
class PipelineStanding:
    """State of one pipeline at one moment."""

    pipeline: str
    status: str
    outage: str = ""
    """Identifies the run and the failure that ended it: a different value is a different outage."""
    reason: str = ""
    error: dict[str, Any] | None = None
    dead_letters: int = 0
    """Total number of dead letters."""


def standings(database: sa.Engine) -> list[PipelineStanding]:
    """Return all pipelines in the store except those whose file was removed for good. Errors of the store propagate."""
    recoveries, letters, away = recovery_rows(database), _dead_letters(database), gone(database)
    found = list[PipelineStanding]()
    for name, row in pipeline_rows(database).items():
        if name not in away:
            state = recoveries.get(name, NEVER)
            outage = f"{state.run}:{state.failure}"
            found.append(
                PipelineStanding(name, row["status"], outage, row["reason"], row["error"], letters.get(name, 0))
            )
    return found


def _dead_letters(database: sa.Engine) -> dict[str, int]:
    rows = sa.select(consumers.c.pipeline, consumers.c.delivered).where(consumers.c.kind == "dlq")
    with reading(database) as connection:
        return {row.pipeline: int(row.delivered) for row in connection.execute(rows)}


class LetterCounts(msgspec.Struct, frozen=True):
    """The window in which new dead letters are counted."""

    base: int
    """Number at its beginning, or when the last alert was sent."""
    since_ns: int
    told: bool = False
    """Whether an alert was sent in this window: the next one waits for its end."""


class ReportedPipeline(msgspec.Struct, frozen=True):
    """Last reported state of one pipeline."""

    outage: str = ""
    """The reported outage; empty if the pipeline is not degraded."""
    letters: LetterCounts | None = None


class ReportedState(msgspec.Struct, frozen=True):
    """Last reported state of all pipelines. Dagster stores it with every tick, so it is kept short."""

    pipelines: dict[str, ReportedPipeline] = {}
    """Those that are degraded or have dead letters; all of them if dead letters are not counted."""
    since_ns: int = 0
    """When the other ones had no dead letters; 0 if that is unknown."""

    def of(self, pipeline: str) -> ReportedPipeline:
        """Return the reported state of a pipeline; empty for a new one."""
        return self.pipelines.get(pipeline, ReportedPipeline())

    def but(self, pipeline: str, one: ReportedPipeline) -> ReportedState:
        """Return a copy with one pipeline changed."""
        return replace(self, pipelines={**self.pipelines, pipeline: one})

    def text(self) -> str:
        """Encode as a cursor."""
        return msgspec.json.encode(self).decode()


def seen_of(cursor: str | None) -> ReportedState | None:
    """Parse a cursor; return None if it is missing, or not one of ours."""
    if not cursor:
        return None
    try:
        return msgspec.json.decode(cursor, type=ReportedState)
    except msgspec.DecodeError:
        return None


learn(ReportedState)


Kind = Literal["degraded", "dead-letters"]


@dataclass(frozen=True)
class AlertRules:
    """Rules for reporting an alert."""

    on: frozenset[Kind] = frozenset({"degraded", "dead-letters"})
    growth: int = 1
    """Number of new dead letters within the interval that triggers an alert."""
    interval: float = 300.0
    """Seconds."""


@dataclass(frozen=True)
class Alert:
    """A reportable event."""

    kind: Kind
    standing: PipelineStanding
    new: int = 0
    """New dead letters."""
    since_ns: int = 0


@dataclass(frozen=True)
class AlertDecision:
    """Alerts to send, and the reported state once all of them are sent."""

    alerts: list[Alert]
    seen: ReportedState


def decide(
    seen: ReportedState | None, standings: Iterable[PipelineStanding], rules: AlertRules, now_ns: int
) -> AlertDecision:
    """Decide which alerts to send.

    ``seen`` None: the reported state is unknown. Then every degraded pipeline is reported, and dead letters count from
    now on. So they do for a pipeline for which they were not counted so far. One whose file is away keeps its state.
    """
    alerts, pipelines = list[Alert](), dict({} if seen is None else seen.pipelines)
    for one in standings:
        known = _known(seen, one, now_ns)
        outage, degraded = _outage(known, one) if "degraded" in rules.on else ("", None)
        letters, grown = _letters(known.letters, one, rules, now_ns) if "dead-letters" in rules.on else (None, None)
        alerts += [alert for alert in (degraded, grown) if alert is not None]
        if outage or letters is None or one.dead_letters:
            pipelines[one.pipeline] = ReportedPipeline(outage, letters)
        else:
            pipelines.pop(one.pipeline, None)
    return AlertDecision(alerts, ReportedState(pipelines, now_ns))


def _known(seen: ReportedState | None, one: PipelineStanding, now_ns: int) -> ReportedPipeline:
    if seen is not None and one.pipeline not in seen.pipelines:
        return ReportedPipeline(letters=LetterCounts(0, seen.since_ns or now_ns))  # all of its letters are new
    known = ReportedPipeline() if seen is None else seen.of(one.pipeline)
    return known if known.letters is not None else replace(known, letters=LetterCounts(one.dead_letters, now_ns))


def _outage(known: ReportedPipeline, one: PipelineStanding) -> tuple[str, Alert | None]:
    if one.status != PipelineStatus.DEGRADED:
        return "", None
    return one.outage, None if known.outage == one.outage else Alert("degraded", one)


def _letters(
    known: LetterCounts | None, one: PipelineStanding, rules: AlertRules, now_ns: int
) -> tuple[LetterCounts, Alert | None]:
    window = known or LetterCounts(0, now_ns)
    if one.dead_letters < window.base:
        return LetterCounts(one.dead_letters, now_ns), None  # a different store
    if window.since_ns > now_ns:
        window = replace(window, since_ns=now_ns)  # the clock was set back
    over = now_ns - window.since_ns >= rules.interval * 1e9
    if window.told and not over:
        return window, None
    new = one.dead_letters - window.base
    if new >= rules.growth:
        return LetterCounts(one.dead_letters, now_ns, told=True), Alert("dead-letters", one, new, window.since_ns)
    return LetterCounts(one.dead_letters, now_ns) if over else window, None


def unsent(decided: ReportedState, before: ReportedState | None, alert: Alert) -> ReportedState:
    """Return the reported state after an alert could not be sent: it is decided again."""
    pipeline = alert.standing.pipeline
    known, was = decided.of(pipeline), ReportedPipeline() if before is None else before.of(pipeline)
    if alert.kind == "degraded":
        return decided.but(pipeline, replace(known, outage=was.outage))
    # the window continues, however long: its letters were not reported
    return decided.but(
        pipeline, replace(known, letters=LetterCounts(alert.standing.dead_letters - alert.new, alert.since_ns))
    )
