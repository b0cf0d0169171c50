"""Prepared steps whose lost staging can't be made again: errors, and the ways out (docs/recovery.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.offset_updates import last_offset
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.state.steps import Decision, Plan, StagedDelivery


def unreadable(plan: Plan, source: str, node: str) -> FatalError:
    """Return the error for a source that the file has changed since."""
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and the file no longer reads {source} as it was: "
        "the source, delivery.log or fan-in has changed",
        code="delivery.source_changed",
        node=node,
        fix="set the source, delivery.log and fan-in back, let the pipeline finish the step (run --once), then change",
    )


def range_lost(plan: Plan, error: ConduitError, ways: str) -> FatalError:
    """Return the error for a source that has lost what the step read."""
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and so is what it read: {error.message}",
        code="delivery.rebuild_differs",
        node=error.node,
        place=error.place,
        fix="put back what the step read, a file or a copy of it named with .1 at its end, and run again; "
        f"on-gone: skip leaves out no prepared step. Where it is gone for good, {ways}",
    )


LOG_LOST: Final = ("log.missing", "log.corrupt")


def log_lost(plan: Plan, error: FatalError, ways: str) -> FatalError:
    """Return the error with a fix that can be followed: a pipeline with a prepared step can't be rewound."""
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and so is what it read: {error.message}",
        code=error.code,
        node=error.node,
        place=error.place,
        fix=f"put the file back from a copy; without one, {ways}",
    )


def archive_lost(plan: Plan, error: FatalError, ways: str) -> FatalError:
    """Return the error for dead letters whose archive is lost as well."""
    return FatalError(
        f"step {plan.step} was prepared, its dead letters' staging is gone, and so is what they are made of: "
        f"{error.message}",
        code=error.code,
        node=error.node,
        place=error.place,
        fix=f"put it back as it was; without it, {ways}",
    )


def ways_out(pipeline: str, plan: Plan, decision: Decision, lost: Sequence[str]) -> str:
    """Return how these consumers, whose staging is lost, do without the step's records."""
    ways = [way_without_copies(pipeline, plan, decision)] if DEAD_LETTERS in lost else []
    if names := [name for name in lost if name != DEAD_LETTERS]:
        another = "the destination" if len(names) == 1 else "each destination"
        ways.append(f"give {another} ({', '.join(names)}) another id, and it does without the step's records")
    return f"{', and '.join(ways)}: see docs/recovery.md"


def way_without_copies(pipeline: str, plan: Plan, decision: Decision) -> str:
    """Return how the queue does without its copies of a step's dead letters, which index and archive have."""
    source = plan.ranges[-1].source
    offset = last_offset(plan, decision, source)
    more = f" --source {source}" if len(plan.ranges) > 1 else ""
    return f"do without the queue's copies: conduit-dagster offsets mark {pipeline} {DEAD_LETTERS} {offset}{more}"


def differs(plan: Plan, old: StagedDelivery, ways: str) -> FatalError:
    """Return the error for a prepared step whose lost staging can't be reproduced. ``ways``: out of it."""
    return FatalError(
        f"step {plan.step} was prepared, its staging is gone, and staging it again gives other records for "
        f"{old.consumer}: a processor, a setting, the source or the version of conduit-dagster has changed",
        code="delivery.rebuild_differs",
        place=old.staging,
        fix="put the pipeline file, the plugins, the source and the version back as they were, run, then change them; "
        f"or {ways}",
    )
