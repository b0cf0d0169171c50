"""Fault injection for the ``chaos`` connectors."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import Duration
from conduit_dagster.record import Nack
from conduit_dagster.recovery.codes import class_of
from conduit_dagster.recovery.errors import FatalError, TransientError, coded
from conduit_dagster.sdk import ConnectorContext, ConnectorSettings
from conduit_dagster.storage import safe_name


class SharedCounter:
    """A monotonic counter shared by the driver and all tasks. It survives ``kill -9``, but not a power failure.

    For folders on a local disk of one machine. To reset it, delete the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def count(self) -> int:
        """The current count; 0 if the file does not exist."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def take(self, wanted: int, limit: int | None = None) -> int:
        """Count as many of ``wanted`` as the total ``limit`` allows; return how many."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # the lock ends with the process: a killed one has either counted in the file or not at all
            fcntl.flock(file, fcntl.LOCK_EX)
            left = wanted if limit is None else limit - os.fstat(file.fileno()).st_size
            granted = max(0, min(wanted, left))
            file.write(b"." * granted)
        return granted


def as_code(text: str) -> int | str:
    """Return an error code with the type that it would have in Python code."""
    return int(text) if text.isdecimal() else text


class FaultSettings(ConnectorSettings):
    """Settings of a fault. Each connector adds ``fail-on``, the points where it can happen."""

    mode: Literal["error", "hang", "slow", "nack"] = "error"
    """``error`` raises; ``hang`` waits for ``hang-for`` and continues; ``slow`` waits for ``slow-by`` each time;
    ``nack``, only with ``fail-on: write``, refuses records.
    """
    after: int = Field(0, ge=0)
    """Number of records before the first fault, over the pipeline's life."""
    times: str = "always"
    """How often: ``once``, a number, or ``always``. Counted over the pipeline's life, across kills and restarts."""
    code: str = ""
    """The error's code, an integer or a dotted name. Empty: an unclassified exception."""
    fatal: bool | None = None
    """Whether the error is fatal or transient. Default: implied by ``code``; without a code the error is unclassified.
    """
    text: Literal["plain", "json"] = "plain"
    """``json``: an ordinary exception whose text is JSON with ``code`` and ``message``."""
    hang_for: Duration = Field(600.0, alias="hang-for")
    """How long a hang lasts, unless its task is cancelled, or ``until`` or ``while`` ends it."""
    slow_by: Duration = Field(1.0, alias="slow-by")
    """Delay of each call, or of each block of records."""
    until: str = ""
    """Path of a file, relative to the project root: no more faults once it exists."""
    while_: str = Field("", alias="while")
    """Path of a file, relative to the project root: faults only while it exists."""

    @property
    def limit(self) -> int | None:
        """``times`` as a number; None for ``always``."""
        return {"always": None, "once": 1}[self.times] if self.times in ("always", "once") else int(self.times)

    @field_validator("times")
    @classmethod
    def _check_times(cls, times: str) -> str:
        if times not in ("once", "always") and not (times.isdecimal() and int(times) > 0):
            raise refuse("not a number of times", expected="once, always, or a number of 1 or more")
        return times

    @field_validator("code")
    @classmethod
    def _check_code(cls, code: str) -> str:
        if code and class_of(as_code(code)) is None:
            raise refuse(
                "there is no such error code",
                expected="a code of docs/error-codes.md",
                fix="for example 503 (transient) or 422 (fatal)",
            )
        return code

    @model_validator(mode="after")
    def _check_together(self) -> FaultSettings:
        if self.mode == "nack" and getattr(self, "fail_on", "none") != "write":
            raise refuse("only a destination's write can nack", fix="set fail-on: write, or another mode")
        if self.text == "json" and not self.code:
            raise refuse("an error as JSON needs a code", fix="set code, or text: plain")
        if self.text == "json" and self.fatal is not None:
            raise refuse("the code of an error as JSON decides whether it is fatal", fix="remove fatal, or text: json")
        if self.until and self.while_:
            raise refuse("until and while are both set", fix="set one of them")
        return self


_POLL = 0.02
_FIX = "it is meant to fail; remove fail-on from the connector's settings to end that"


def _tally(root: str | Path, pipeline: str, connector: str, point: str, what: str) -> SharedCounter:
    name = "-".join([safe_name(pipeline), safe_name(connector), point])
    return SharedCounter(Path(root, ".conduit", "chaos", f"{name}.{what}"))


def failures(root: str | Path, pipeline: str, connector: str, point: str) -> int:
    """Return how often a ``chaos`` connector failed, hung, was slow or nacked at a point (``fail-on``)."""
    return _tally(root, pipeline, connector, point, "failures").count


class Fault:
    """A connector's fault: at one point, from a given record on, a given number of times. Keeps no state in memory.

    Driver and tasks each create their own; the counts are files in the project's ``.conduit/chaos``.
    """

    def __init__(self, settings: FaultSettings, point: str, context: ConnectorContext) -> None:
        self._settings, self._point, self._context = settings, point, context
        names = (context.root, context.pipeline, context.connector, point)
        self._failures, self._passed = _tally(*names, "failures"), _tally(*names, "passed")

    @property
    def is_slow(self) -> bool:
        """Whether it recurs with every block."""
        return self._settings.mode == "slow"

    @property
    def after(self) -> int:
        """Number of records before the first fault."""
        return self._settings.after

    def is_at(self, *points: str) -> bool:
        """Return whether the fault is for one of these points."""
        return self._point in points

    @property
    def passed(self) -> int:
        """Number of records counted by destinations in :meth:`passes`."""
        return self._passed.count if self._settings.after else 0

    def passes(self, records: int) -> None:
        """Count records that passed. Records written or published again count again."""
        if self._settings.after:
            self._passed.take(records)

    def strike(self, point: str, upto: int) -> None:
        """Raise or wait if the fault is due; ``upto`` is the number of the last record concerned, from 1."""
        if self._settings.mode != "nack" and self.is_at(point) and upto > self.after and self._takes(1):
            self._act()

    def refused(self, passed: int, records: int) -> range:
        """Return which of the records after the first ``passed`` a writer refuses."""
        first = max(0, self.after - passed)
        if self._settings.mode != "nack" or first >= records:
            return range(0)
        return range(first, first + self._takes(records - first))

    @property
    def nack(self) -> Nack:
        """The nack of a refused record."""
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
        # connectors are not notified of a stop: Spark ends the worker of a cancelled task, and the driver waits this
        # out
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
