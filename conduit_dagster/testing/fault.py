"""What a ``chaos`` connector does when its time has come."""

from __future__ import annotations

import json
import time
from pathlib import Path

from conduit_dagster.record import Nack
from conduit_dagster.recovery.errors import FatalError, TransientError, coded
from conduit_dagster.sdk import ConnectorContext
from conduit_dagster.state.storage import safe_name
from conduit_dagster.testing.fault_settings import FaultSettings, as_code
from conduit_dagster.testing.tally import Tally

_POLL = 0.02
_FIX = "it is meant to fail; remove fail-on from the connector's settings to end that"


def _tally(root: str | Path, pipeline: str, connector: str, point: str, what: str) -> Tally:
    name = "-".join([safe_name(pipeline), safe_name(connector), point])
    return Tally(Path(root, ".conduit", "chaos", f"{name}.{what}"))


def failures(root: str | Path, pipeline: str, connector: str, point: str) -> int:
    """How often a ``chaos`` connector of the project has failed, hung, been slow or nacked at a point (``fail-on``)."""
    return _tally(root, pipeline, connector, point, "failures").count


class Fault:
    """One connector's fault: at one point, from one record on, so many times. Keeps nothing in memory.

    Driver and tasks each make one of their own; what was counted lies in the project's ``.conduit/chaos``.
    """

    def __init__(self, settings: FaultSettings, point: str, context: ConnectorContext) -> None:
        self._settings, self._point, self._context = settings, point, context
        names = (context.root, context.pipeline, context.connector, point)
        self._failures, self._passed = _tally(*names, "failures"), _tally(*names, "passed")

    @property
    def is_slow(self) -> bool:
        """Whether it comes again with every block."""
        return self._settings.mode == "slow"

    @property
    def after(self) -> int:
        """How many records get through first."""
        return self._settings.after

    def is_at(self, *points: str) -> bool:
        """Whether this is about one of these points."""
        return self._point in points

    @property
    def passed(self) -> int:
        """How many records destinations have counted by :meth:`passes`."""
        return self._passed.count if self._settings.after else 0

    def passes(self, records: int) -> None:
        """Counts records that got through. Those that are written or published once more count once more."""
        if self._settings.after:
            self._passed.take(records)

    def strike(self, point: str, upto: int) -> None:
        """Raises or waits where it is time to; ``upto`` is the number of the last record concerned, from 1."""
        if self._settings.mode != "nack" and self.is_at(point) and upto > self.after and self._takes(1):
            self._act()

    def refused(self, passed: int, records: int) -> range:
        """Which of so many records, the first behind ``passed`` others, a writer is to refuse."""
        first = max(0, self.after - passed)
        if self._settings.mode != "nack" or first >= records:
            return range(0)
        return range(first, first + self._takes(records - first))

    @property
    def nack(self) -> Nack:
        """Why a record is refused."""
        return Nack(self._settings.code or "chaos.nacked", "chaos refuses this record")

    def _takes(self, wanted: int) -> int:
        return self._failures.take(wanted, self._settings.limit) if self._is_on() else 0

    def _is_on(self) -> bool:
        until, during = self._settings.until, self._settings.while_
        if until:
            return not self._exists(until)
        return not during or self._exists(during)

    def _exists(self, path: str) -> bool:
        return Path(self._context.resolve(path)).exists()

    def _act(self) -> None:
        if self._settings.mode == "hang":
            self._wait(self._settings.hang_for)
        elif self._settings.mode == "slow":
            self._wait(self._settings.slow_by)
        else:
            raise self._error()

    def _wait(self, seconds: float) -> None:
        # nobody tells a connector of a stop: Spark ends the worker of a cancelled task, the driver waits this out
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._is_on():
            time.sleep(min(left, _POLL))

    def _error(self) -> Exception:
        settings = self._settings
        message = f"chaos fails on {self._point} (failure {self._failures.count})"
        if settings.text == "json":
            return RuntimeError(json.dumps({"code": as_code(settings.code), "message": message}))
        if not settings.code and settings.fatal is None:
            return RuntimeError(message)
        code, node = settings.code or f"chaos.{self._point}", self._context.full_id
        if settings.fatal is None:
            return coded(message, code=code, node=node, fix=_FIX)
        kind = FatalError if settings.fatal else TransientError
        return kind(message, code=code, node=node, fix=_FIX)
