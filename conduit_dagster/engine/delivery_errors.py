"""Why a run stops at a delivery: what it says, and what to do (DELIVERY.md, When publishing fails)."""

from __future__ import annotations

from conduit_dagster.engine.blame import blame
from conduit_dagster.engine.redaction import Redaction
from conduit_dagster.engine.sending import Sent
from conduit_dagster.record import Nack
from conduit_dagster.recovery.classify import classified
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import AlreadyClaimed, Rejected


def is_outage(error: Exception) -> bool:
    """Connection, timeout, resource, shutdown, or what says its own class (B8): it never becomes nacks."""
    if isinstance(error, Rejected | AlreadyClaimed):
        return False
    return isinstance(error, OSError) or classified(error) is not None


def told(error: Exception, node: str, redaction: Redaction) -> ConduitError:
    """Any error of a destination that names no record, as one of ours; to be raised ``from shown(...)`` of it."""
    known = blame(error, node)
    if not redaction or is_outage(error):
        return known
    return TransientError(redaction.unnamed(error), code=known.code, node=known.node)  # what nobody classified


def shown(error: Exception, redaction: Redaction) -> Exception | None:
    """The error as another's cause, where its text may be printed with that."""
    return error if not redaction or is_outage(error) else None


def reason(nack: tuple[int, str, str], redaction: Redaction) -> str:
    """Why a record was refused, where it is not looked up what it holds."""
    return f"{nack[1]}; its text is left out, for it may hold what is redacted" if redaction else nack[2]


def refused_letter(sent: Sent, node: str, redaction: Redaction) -> ConduitError | None:
    """Why a dead-letter queue did not take a letter; None where it did."""
    if sent.error is None and not sent.nacks:
        return None
    if sent.error is not None:
        error: ConduitError = sent.error.as_error()
    else:
        # the other end may think better of it: a dead-letter write that failed, as any other (CASES B7)
        message = f"the dead-letter queue did not take a record: {reason(sent.nacks[0], redaction)}"
        error = TransientError(message, code="dead_letters.write_failed", fix="mend the queue; nothing was lost")
    error.node = error.node or node
    return error


def queue_refuses(nack: Nack, node: str) -> FatalError:
    """What the queue's own format or processor can't take: it would refuse it again, so a restart is of no use."""
    return FatalError(
        f"the dead-letter queue refuses a record: {nack.message}",
        code="dead_letters.refused",
        node=node,
        fix="give the dead-letter queue a format that takes any record, such as opencdc/json, and run again",
    )


def split_error(error: object, node: str) -> TransientError:
    """Why the run stops after a bulk error."""
    return TransientError(
        f"the destination failed and named no record: {error}",
        code="delivery.bulk_failed",
        node=node,
        fix="run again: its records are then sent one at a time, so that the one at fault is found",
    )


def lone_error(where: str, error: object, node: str) -> TransientError:
    """Why the run stops at a record that fails alone and is not refused."""
    return TransientError(
        f"one record fails: {error}",
        code="delivery.record_failed",
        node=node,
        place=where,
        fix="mend the destination and run again; or skip the record with conduit-dagster offsets mark",
    )
