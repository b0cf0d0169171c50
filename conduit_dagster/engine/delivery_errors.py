"""Errors that stop a run at a delivery: their messages and fixes.

Those of a destination that fails (docs/delivery.md, When publishing fails), then those of prepared steps whose lost
staging can't be made again, with the ways out (docs/recovery.md).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.offset_updates import last_offset
from conduit_dagster.engine.redaction import Redaction
from conduit_dagster.engine.sending import Sent
from conduit_dagster.record import Nack
from conduit_dagster.recovery.classify import blame, classified, survivable
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import AlreadyClaimed, Delivery, Rejected, StagedDestination, Target
from conduit_dagster.state.steps import Decision, Plan, StagedDelivery


def published(destination: StagedDestination, delivery: Delivery) -> Target:
    """Publish a delivery; what a library raises past ``Exception``, such as ``SystemExit``, is an outage of it."""
    try:
        return destination.publish(delivery)
    except BaseException as error:
        if isinstance(error, Exception) or (outage := survivable(error)) is None:
            raise
        raise outage from error


def is_outage(error: Exception) -> bool:
    """Return whether an error is an outage, which never becomes a nack.

    These are connection, timeout, resource and shutdown errors, and errors that state their own class.
    """
    if isinstance(error, Rejected | AlreadyClaimed):
        return False
    return isinstance(error, OSError) or classified(error) is not None


def undivided(error: Rejected, node: str, redaction: Redaction) -> FatalError:
    """Return the error for a refused record of a destination that takes deliveries whole only."""
    why = "" if redaction else f": {error}"
    return FatalError(
        f"publish() refused a record, and the destination does not take a delivery without it{why}",
        code="plugin.result_invalid",
        node=node,
        fix="refuse records in the writer; or set divisible = True, and publish what staged_records(delivery) gives",
    )


def to_error(error: Exception, node: str, redaction: Redaction) -> ConduitError:
    """Convert a destination's error that names no record to a ``ConduitError``; raise it ``from shown_cause(...)``."""
    known = blame(error, node)
    if not redaction or is_outage(error):
        return known
    return TransientError(redaction.unnamed(error), code=known.code, node=known.node)  # unclassified


def shown_cause(error: Exception, redaction: Redaction) -> Exception | None:
    """Return the error for use as a cause if its text may be shown; otherwise None."""
    return error if not redaction or is_outage(error) else None


def reason(nack: tuple[int, str, str], redaction: Redaction) -> str:
    """Return why a record was refused; without the text if anything is redacted, since the record is not examined."""
    return f"{nack[1]}; its text is left out, because it may contain redacted values" if redaction else nack[2]


def dropped_with(nack: tuple[int, str, str], node: str, redaction: Redaction) -> ConduitError:
    """Return the error of an at-most-once delivery that is dropped because of a refused record, under its code."""
    return ConduitError(reason(nack, redaction), code=nack[1], node=node)


def refused_letter(sent: Sent, node: str, redaction: Redaction) -> ConduitError | None:
    """Return the error of a dead-letter queue that did not accept a letter; None if it did."""
    if sent.error is None and not sent.nacks:
        return None
    if sent.error is not None:
        error: ConduitError = sent.error.as_error()
    else:
        # the queue may accept it later: treat it like any other failed dead-letter write (CASES B7)
        message = f"the dead-letter queue did not take a record: {reason(sent.nacks[0], redaction)}"
        error = TransientError(message, code="dead_letters.write_failed", fix="fix the queue; nothing was lost")
    error.set_node(node)
    return error


def queue_refuses(nack: Nack, node: str) -> FatalError:
    """Return the error for a record that the queue's own format or processor refuses: a restart would not help."""
    return FatalError(
        f"the dead-letter queue refuses a record: {nack.message}",
        code="dead_letters.refused",
        node=node,
        fix="give the dead-letter queue a format that takes any record, such as opencdc/json, and run again",
    )


def split_error(error: object, node: str) -> TransientError:
    """Return the error that stops the run after a bulk error."""
    return TransientError(
        f"the destination failed and named no record: {error}",
        code="delivery.bulk_failed",
        node=node,
        fix="run again: its records are then sent in smaller and smaller parts, so that the one at fault is found",
    )


def lone_error(source: str, offset: int, where: str, error: object, node: str) -> TransientError:
    """Return the error that stops the run at a single record that fails without being refused."""
    mark = f"conduit-dagster offsets mark PIPELINE CONNECTOR --offset {offset} --source {shlex.quote(source)}"
    return TransientError(
        f"one record fails: {error}",
        code="delivery.record_failed",
        node=node,
        place=where,
        fix=f"fix the destination and run again; or stop the pipeline and skip the record: {mark}",
    )


# -- lost staging ---------------------------------------------------------------------------------------------------


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
