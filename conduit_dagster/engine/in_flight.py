"""Steps in flight: while one publishes, the next ones are planned and staged (DELIVERY.md, max-in-flight)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType

from conduit_dagster.engine.bounded import Worker
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.stager import Staged
from conduit_dagster.state.steps import Plan


class InFlightSteps:
    """At most ``depth`` unacked steps. Their second halves (after staging) run one at a time, in order."""

    def __init__(self, loop: StepLoop, depth: int, goes_on: Callable[[], bool]) -> None:
        self._loop, self._depth, self._goes_on = loop, depth, goes_on
        self._pool = Worker[None]("finish") if depth > 1 else None
        self._unfinished: deque[Future[None]] = deque()
        self._failed = threading.Event()
        self.failed_step: int | None = None
        """The step that ended the run; later ones are void."""

    def __enter__(self) -> InFlightSteps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            self._failed.set()
        if self._pool is not None:
            self._pool.close()

    def take(self, plan: Plan) -> None:
        """Stage a step, then finish it at once or, with more than one in flight, after the steps before it."""
        try:
            staged = self._loop.stage(plan)
        except BaseException:
            self._fail(plan.step)
            raise
        if self._pool is None:
            self._finish(plan, staged)
            return
        self._unfinished.append(self._pool.submit(partial(self._finish, plan, staged)))
        while len(self._unfinished) >= self._depth:
            self._unfinished.popleft().result()

    def look(self) -> None:
        """Raise the error of a step that has failed in the background."""
        while self._unfinished and self._unfinished[0].done():
            self._unfinished.popleft().result()

    def land(self) -> None:
        """Wait for all steps in flight; raise the first error."""
        while self._unfinished:
            self._unfinished.popleft().result()

    def _finish(self, plan: Plan, staged: Staged) -> None:
        if self._failed.is_set():
            return  # an earlier step failed: this one becomes void when the run ends
        if not self._goes_on():
            self._loop.context.store.void(plan.step)
            return
        try:
            self._loop.finish(plan, staged)
        except BaseException:
            self._fail(plan.step)
            raise

    def _fail(self, step: int) -> None:
        self._failed.set()
        self.failed_step = step if self.failed_step is None else min(step, self.failed_step)
