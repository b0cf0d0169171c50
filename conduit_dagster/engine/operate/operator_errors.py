"""Errors of operations that are refused."""

from __future__ import annotations

from collections.abc import Collection

from conduit_dagster.config.findings import did_you_mean
from conduit_dagster.recovery.errors import FatalError


def refused(code: str, message: str, fix: str, *, place: str | None = None, node: str | None = None) -> FatalError:
    """Return the error for a refused operation: nothing was changed."""
    return FatalError(message, code=code, fix=fix, place=place, node=node)


def chosen(kind: str, given: str | None, names: Collection[str], pipeline: str) -> str:
    """Return the given name, or the only existing one. Raises ``FatalError`` (``usage.*``) otherwise."""
    known = ", ".join(names) or "none"
    if given is None:
        if len(names) == 1:
            return next(iter(names))
        message = f"pipeline {pipeline} has {len(names)} {kind}s ({known})"
        raise refused(f"usage.which_{kind}", message, f"name the {kind}")
    if given not in names:
        fix = did_you_mean(given, names) or f"it has: {known}"
        raise refused(f"usage.unknown_{kind}", f"pipeline {pipeline} has no {kind} {given}", fix)
    return given


def failed_again(pipeline: str, message: str) -> FatalError:
    """Return the error for a replay after which letters are still open; what else it sent is delivered."""
    fix = f"fix what they failed for, and repeat it; conduit-dagster dlq list {pipeline} shows them"
    return FatalError(message, code="dead_letters.failed_again", fix=fix)


def never_ran(pipeline: str) -> FatalError:
    """Return the error for a pipeline that never ran."""
    message = f"pipeline {pipeline} never ran: the state store does not know it"
    return refused("pipeline.never_ran", message, f"run it: conduit-dagster run --once, with the file of {pipeline}")
