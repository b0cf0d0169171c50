"""Reports on a run: its steps, its progress, its result, and the story of its failure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.offset_updates import joined_members
from conduit_dagster.engine.stage_job import NackRow
from conduit_dagster.recovery.codes import tells_loss
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.policy import PipelineStatus, RestartHistory, Wait
from conduit_dagster.sdk import Strategy
from conduit_dagster.state.history import events
from conduit_dagster.state.overview import last_done_ns
from conduit_dagster.state.steps import Decision, Plan, SourceCount

_SAMPLE = 20


@dataclass(frozen=True)
class StepReport:
    """A step that is done."""

    step: int
    seconds: float
    sources: dict[str, SourceCount]
    positions: dict[str, Any]
    delivered: dict[str, int]
    bytes: dict[str, int]
    filtered: dict[str, int]
    nacked: dict[str, int]
    dead_letters: list[NackRow]
    """The newest few."""
    is_acked: bool = True
    """Whether all of its sources took their ack; the next start repeats it."""

    @staticmethod
    def of(
        plan: Plan,
        decision: Decision,
        nacks: list[NackRow],
        refused: Mapping[str, list[NackRow]],
        delivered: Mapping[str, int],
        seconds: float,
    ) -> StepReport:
        """Return the report of a step; ``refused``: nacks found at publishing, by the destination that refused.

        ``delivered``: number of records delivered per consumer; a missing consumer got its whole delivery. Each source
        of a join gets the counts of the join.
        """
        members = joined_members(plan)
        late = [row for rows in refused.values() for row in rows]
        sources = {name: copy(count) for name, count in decision.sources.items()}
        nacked = dict(decision.nacked)
        for row in late:
            sources[row.source].nacked += 1
            reason = f"{row.node} {row.code}"
            nacked[reason] = nacked.get(reason, 0) + 1
        counts = {d.consumer: delivered.get(d.consumer, d.records) for d in decision.deliveries}
        # records that a replay could not deliver are already in the queue
        counts[DEAD_LETTERS] = counts.get(DEAD_LETTERS, 0) + (0 if plan.replay else len(late))
        return StepReport(
            plan.step,
            seconds,
            {name: copy(sources[of]) for of in sources for name in members.get(of, [of])},
            {
                name: span.end[name] if span.source in members else span.end
                for span in plan.ranges
                for name in members.get(span.source, [span.source])
            },
            counts,
            {
                one.consumer: sum(part.bytes for part in one.parts)
                for one in decision.deliveries
                if counts[one.consumer]
            },
            decision.filtered,
            nacked,
            [*nacks, *late][-_SAMPLE:],
        )


@dataclass
class RunProgress:
    """Totals of a run's steps."""

    started: float = field(default_factory=time.monotonic)
    steps: int = 0
    read: int = 0
    filtered: int = 0
    nacked: int = 0
    dead_lettered: int = 0
    seconds: float = 0.0
    sources: Counter[str] = field(default_factory=Counter[str])
    positions: dict[str, Any] = field(default_factory=dict[str, Any])
    delivered: Counter[str] = field(default_factory=Counter[str])
    filtered_by: Counter[str] = field(default_factory=Counter[str])
    nacked_by: Counter[str] = field(default_factory=Counter[str])

    @property
    def acked(self) -> int:
        """Records handled end to end: delivered everywhere or filtered; dead letters are counted separately."""
        return self.read - self.nacked

    def add(self, step: StepReport) -> None:
        """Add a step's counts."""
        self.steps += 1
        self.seconds += step.seconds
        for source, count in step.sources.items():
            self.read += count.read
            self.filtered += count.filtered
            self.nacked += count.nacked
            self.sources[source] += count.read
        self.positions.update(step.positions)
        self.dead_lettered += step.delivered.get(DEAD_LETTERS, 0)
        self.delivered.update({k: v for k, v in step.delivered.items() if k != DEAD_LETTERS})
        self.filtered_by.update(step.filtered)
        self.nacked_by.update(step.nacked)


@dataclass(frozen=True)
class PendingRestart:
    """The restart that follows a failure."""

    failure: int | None
    """Its number in the store; None if the store did not answer."""
    attempt: int
    delay: float
    """Seconds, as decided by the policy."""
    at_ns: int
    past: RestartHistory

    @staticmethod
    def of(wait: Wait, failure: int | None) -> PendingRestart:
        """Return the restart that was decided."""
        return PendingRestart(failure, wait.attempt, wait.delay, wait.at_ns, wait.past)


class FailureStory(NamedTuple):
    """Facts to report about a failure besides its error."""

    since_ns: int
    """Time of the first failure after the last success."""
    safe: str

    @property
    def since(self) -> str:
        """That time as text."""
        return datetime.fromtimestamp(self.since_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    pipeline: str
    status: PipelineStatus
    reason: str
    error: ConduitError | None
    progress: RunProgress
    restart: PendingRestart | None = None
    """Set if the status is ``recovering``."""
    hung: str = ""
    """Location of the hanging call if a stop exceeded its timeout."""
    drained: bool = False
    """Whether it ended by itself: no stop was requested, and everything in its sources was read."""
    story: FailureStory | None = None
    """Story of a failure of the pipeline itself, as far as the store can be read."""

    @property
    def ending(self) -> str:
        """How the run ended, for display."""
        if self.status != PipelineStatus.STOPPED or not (self.drained or self.reason):
            return self.status
        return "finished (all input read)" if self.drained else f"stopped by the {self.reason}"

    def as_json(self) -> dict[str, Any]:
        """Return the result in the documented format of ``run --json`` (DESIGN.md, Command line)."""
        progress, restart = self.progress, self.restart
        return {
            "id": self.pipeline,
            "status": self.status,
            "reason": self.reason,
            "error": None if self.error is None else error_json(self.error),
            "restart": restart and {"attempt": restart.attempt, "delay": restart.delay, "at_ns": restart.at_ns},
            "hung": self.hung or None,
            "records": {
                "read": progress.read,
                "acked": progress.acked,
                "filtered": progress.filtered,
                "nacked": progress.nacked,
                "dead_lettered": progress.dead_lettered,
            },
            "sources": [
                {"id": source, "position": progress.positions.get(source), "records": records}
                for source, records in progress.sources.items()
            ],
            "destinations": [{"id": name, "delivered": number} for name, number in progress.delivered.items()],
            "filtered_by": progress.filtered_by,
            "nacked_by": progress.nacked_by,
            "steps": progress.steps,
            "seconds": round(progress.seconds, 3),
        }


def error_json(error: ConduitError) -> dict[str, Any]:
    """Return an error in the format of the state store and of a run's summary."""
    return {**error.fields(), "fatal": error.fatal}


_LOOKS: Final = 200
"""Number of events searched for the beginning of a series of failures."""
_REST: Final[dict[Strategy, str]] = {
    "exactly-once": "nothing is lost: what is not acked is read or sent again, and delivered once",
    "at-least-once": "nothing is lost: what is not acked is read or sent again, and some of it may be delivered twice",
    "at-most-once": "what was being delivered is not sent again; pipelines history tells how many records that were",
}


def story_of(database: sa.Engine, pipeline: str, strategy: Strategy, acked: int, code: str = "") -> FailureStory | None:
    """Return the story of a pipeline that has just failed; None if the store can't provide it.

    ``acked``: records acked in this run; ``code``: of the error.
    """
    try:
        since = _failing_since(database, pipeline)
    except (ConduitError, SQLAlchemyError):
        return None
    records = {0: "no record was", 1: "1 record was"}.get(acked, f"{acked:,} records were")
    rest = _REST[strategy]
    if tells_loss(code):
        rest = "what the error names is gone; " + rest.removeprefix("nothing is lost: ")
    return None if since is None else FailureStory(since, f"{records} acked in this run; {rest}")


def _failing_since(database: sa.Engine, pipeline: str) -> int | None:
    found: int | None = None
    # a start by hand has no event for its first success
    for event in reversed(events(database, pipeline, _LOOKS, last_done_ns(database, pipeline))):
        if event.event == "failed":
            found = event.at_ns
        elif event.event in ("recovered", "stopped"):
            break
    return found
