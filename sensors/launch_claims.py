"""Launches of runs where several code locations of a Dagster have loaded the same project: one launches each run."""

from __future__ import annotations

import time

import dagster as dg
import sqlalchemy as sa

from conduit_dagster.state.launches import LaunchClaim, LaunchKind, claim_launch

_EXPIRY = 60.0
"""Seconds after which another code location launches a run that was claimed and is still due: Dagster ends a tick after
60 s.
"""


def location_of(context: dg.SensorEvaluationContext) -> str:
    """Return the name of the sensor's code location; empty outside of Dagster's daemon."""
    origin = context.code_location_origin
    return "" if origin is None else origin.location_name


def is_by_hand(context: dg.SensorEvaluationContext) -> bool:
    """Return whether the sensor is evaluated by hand, in Dagster's UI or by its command ``sensor preview``.

    Dagster names a tick by its number, and such an evaluation, of which it launches and stores nothing, by its time.
    """
    return not (context.log_key or ["0"])[-1].isdecimal()


class LaunchClaims:
    """Claims of launches as one sensor sees them, over the ticks of one process.

    A code location that claims a launch and is killed before Dagster has the run launches it again when it is back;
    until then another one does, after ``_EXPIRY``. That is counted by this process's own clock, as for leases.
    """

    def __init__(self) -> None:
        self._others: dict[tuple[str, LaunchKind], tuple[LaunchClaim, float]] = {}
        """By pipeline and kind: the claim of another code location, and when it was seen first."""

    def take(self, database: sa.Engine, pipeline: str, kind: LaunchKind, wanted: LaunchClaim) -> bool:
        """Claim a launch; return False if it is left to another code location."""
        now = time.monotonic()
        place = pipeline, kind
        other, since = self._others.get(place, (None, now))
        expired = other if now - since >= _EXPIRY else None
        found = claim_launch(database, pipeline, kind, wanted, expired)
        if found == wanted:
            self._others.pop(place, None)
            return True
        if found != other:
            self._others[place] = found, now
        return False
