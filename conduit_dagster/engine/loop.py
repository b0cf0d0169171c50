"""The step loop: plan, stage, resolve, prepare, publish, done (docs/delivery.md, One step)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import msgspec

from conduit_dagster.daemon_threads import Worker
from conduit_dagster.engine.appender import Appender
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.dead_letters.late_letters import LateLetters, StepOriginals
from conduit_dagster.engine.delivery_progress import Shipment
from conduit_dagster.engine.offset_updates import after_step
from conduit_dagster.engine.plan import StepPlanner
from conduit_dagster.engine.prepare import index_letters, prepare
from conduit_dagster.engine.publish import Publisher
from conduit_dagster.engine.refusals import Refusals
from conduit_dagster.engine.report import StepReport
from conduit_dagster.engine.resolve import NackWindow, Resolution, cut, cut_failed, refusal, resolve
from conduit_dagster.engine.restage import Restaged
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.stage_job import NackRow
from conduit_dagster.engine.stager import Staged, Stager
from conduit_dagster.engine.step_context import SourceAcks, StepContext, StepSettings
from conduit_dagster.engine.step_log import StepLog
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Limit
from conduit_dagster.state.lease import LeaseLost
from conduit_dagster.state.steps import Decision, LoggedRange, Plan, Range
from conduit_dagster.state.store import PipelineStore


class StepLoop:
    """One pipeline's steps in order. Not reusable after an error: start-up recovery must run first.

    One thread may plan and stage ahead while another finishes the earlier steps, one at a time. With an ``appender``
    steps read through the log. ``report`` is called after each step.
    """

    def __init__(
        self,
        context: StepContext,
        report: Callable[[StepReport], None] = lambda step: None,
        appender: Appender | None = None,
    ) -> None:
        self.context, self._report = context, report
        self.stager = Stager(context)
        self.restaged = Restaged(context, self.stager)
        originals = StepOriginals(context, self.restaged)
        self.letters = LateLetters(context, originals)
        self.refusals = Refusals(context, originals, self.letters)
        self.publisher = Publisher(context, self.refusals, self.restaged)
        self._log = StepLog(context, appender, self.stager) if appender is not None else None
        self.planner = StepPlanner(context, self._log)
        self._began: dict[int, float] = {}
        self.kept: int | None = None
        """The step with which the next run begins, if one was cut and could not be read again."""

    # -- line 3 -------------------------------------------------------------------------------------------------

    def stage(self, plan: Plan) -> Staged:
        """Read, process and stage a planned step; also log it if its plan requires."""
        self._began[plan.step] = time.monotonic()
        staged = self._staged(plan)
        if staged.failures:
            self.planner.close()  # it will be cut
        self.planner.cursor.staged(plan, staged.ledgers)
        return staged

    def _staged(self, plan: Plan) -> Staged:
        logged = self._log.stage(plan) if self._log is not None else None
        return logged or self.stager.stage(plan)

    def can_stage(self, plan: Plan) -> bool:
        """Return whether a step planned by an earlier run can be staged: its records are in the log, or will be."""
        return self._log is None or self._log.can_stage(plan)

    # -- lines 4 to 7 -------------------------------------------------------------------------------------------

    def execute(self, plan: Plan) -> None:
        """Run a planned step through the remaining lines of the protocol."""
        self.finish(plan, self.stage(plan))

    def finish(self, plan: Plan, staged: Staged) -> None:
        """Run a staged step through the remaining lines. Call it only when every earlier step is done.

        If the window does not accept a nack, its error is raised after everything before the nack is done and acked.
        """
        started = self._began.pop(plan.step)
        plan, staged, resolution, refused = self._resolved(plan, staged)
        decision = prepare(self.context, self.stager, plan, staged, resolution)
        shipments = [Shipment(plan, decision, delivery) for delivery in decision.deliveries]
        failed = self._publish(decision, shipments)
        partly = {one.consumer: one.delivered for one in shipments if one.missed}
        self.complete(plan, decision, resolution.nacks, started, partly)
        self.stager.discard(staged.staging)
        if error := failed or refused:
            raise error

    def _publish(self, decision: Decision, shipments: Sequence[Shipment]) -> ConduitError | None:
        """Publish a step. Return the error of an at-most-once step: it is done, and what failed of it is dropped."""
        try:
            self.publisher.publish(shipments)
        except ConduitError as error:
            if not decision.once or isinstance(error, LeaseLost):
                raise
            return error
        return None

    def _resolved(self, plan: Plan, staged: Staged) -> tuple[Plan, Staged, Resolution, ConduitError | None]:
        """Resolve a step, cutting it before each record that must not be handled."""
        context, window = self.context, self.context.settings.window
        refused: ConduitError | None = None
        cut_to: dict[str, int] = {}
        while True:
            if staged.failures:
                # records read before the failure are delivered: each restart gets at least as far as the last run
                refused = staged.failures[0].error.as_error()
                failed = {failure.source: failure.ordinal for failure in staged.failures}
                if any(ordinal >= cut_to.get(source, ordinal + 1) for source, ordinal in failed.items()):
                    raise refused  # behind its last record: no cut would be shorter
                if not refused.fatal and any(not failed[source] for source in cut_to.keys() & failed.keys()):
                    # it gives less each time that it is read, as a server does that limits requests: the cut step
                    # stays planned, and is the first of the next run
                    self.kept = plan.step
                    raise refused
                cut_to |= failed
                shorter = cut_failed(plan, staged.failures, self._within, self._read_within)
            else:
                resolution = resolve(plan, staged.ledgers, window, context.state.window)
                if resolution.refused is None:
                    return plan, staged, resolution, refused
                refused = refusal(resolution.refused, window)
                ranges = cut(plan, resolution.refused, self._within)
                shorter = msgspec.structs.replace(plan, ranges=ranges, logs={})
            self.stager.discard(staged.staging)
            successor = self.planner.replace(plan, shorter)
            if successor is None:
                raise refused
            plan, staged = successor, self._staged(successor)

    def _within(self, span: Range, boundary: Any) -> Any:
        return self.context.pipeline.source_node(span.source).source.within(span.start, span.end, boundary)

    def _read_within(self, source: str, reach: LoggedRange, boundary: Any) -> Any:
        """Like :meth:`_within`, but for the source itself if steps read its log."""
        node = next(node for node in self.context.pipeline.sources if node.id == source)
        return node.source.within(reach.start, reach.end, boundary)

    def complete(
        self,
        plan: Plan,
        decision: Decision,
        nacks: list[NackRow],
        started: float,
        delivered: Mapping[str, int],
        void: frozenset[str] = frozenset(),
    ) -> None:
        """Store that a step is done, and only then ack: a source is never acked ahead of its stored position.

        Then report the step. ``started``: on the monotonic clock. ``delivered``: number of records delivered to each
        consumer that did not get its whole delivery. ``void``: consumers that were retired while their delivery was
        open. Raises the error of a source that fails to take its ack, once the step is reported.
        """
        context = self.context
        reached("before-done", context.name)
        if not decision.once:
            # a consumer that the decision does not name, or whose delivery is void, got nothing: its offset stays
            named = (delivery.consumer for delivery in decision.deliveries)
            names = [name for name in named if plan.only in ("", name) and name not in void]
            context.store.done(plan, decision, after_step(plan, decision), names)
        reached("after-done", context.name)
        failed = self._ack(plan)
        reached("after-ack", context.name)
        context.state.finished(plan, decision)
        seconds = time.monotonic() - started
        report = StepReport.of(plan, decision, nacks, self.refusals.take_rows(), delivered, seconds)
        self._report(replace(report, is_acked=failed is None))
        self.restaged.discard()
        context.processor_states.forget(plan.memory, decision.memory)
        if failed is not None:
            raise failed

    def _ack(self, plan: Plan) -> ConduitError | None:
        """Ack a step to its sources; return the error of one that fails: the step is done all the same, and counts."""
        try:
            for span in plan.ranges:
                self.context.ack(span)
        except ConduitError as error:
            return error
        return None


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

    def submit(self, plan: Plan) -> None:
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

    def raise_failure(self) -> None:
        """Raise the error of a step that has failed in the background."""
        while self._unfinished and self._unfinished[0].done():
            self._unfinished.popleft().result()

    def wait(self) -> None:
        """Wait for all steps in flight; raise the first error."""
        while self._unfinished:
            self._unfinished.popleft().result()

    def _finish(self, plan: Plan, staged: Staged) -> None:
        # behind a failed step: this one is not prepared, and is void or staged again (CASES A10)
        is_behind = self._failed.is_set()
        if is_behind or not self._goes_on():
            if not is_behind:
                self._loop.context.store.void(plan.step)
            self._loop.stager.discard(staged.staging)
            return
        try:
            self._loop.finish(plan, staged)
        except BaseException:
            # its number is above all those that were staged ahead, which ended with the cut
            self._fail(plan.step if self._loop.kept is None else self._loop.kept)
            raise

    def _fail(self, step: int) -> None:
        self._failed.set()
        self.failed_step = step if self.failed_step is None else min(step, self.failed_step)


def make_context(
    bound: BoundPipeline,
    store: PipelineStore,
    jobs: Jobs,
    options: RunOptions,
    slots: Callable[[], int],
    acks: SourceAcks,
) -> StepContext:
    """Return the context of a run of a pipeline; ``slots`` returns how many tasks run at once.

    Adds the missing index rows of dead letters that an earlier owner of the lease left behind.
    """
    delivery, queue = bound.config.delivery, bound.config.dead_letter_queue
    settings = StepSettings(
        limit=Limit(delivery.batch_size, delivery.batch_bytes),
        window=NackWindow(queue.window_size, queue.window_nack_threshold),
        bisect=delivery.redelivery == "bisect",
        flush_interval=delivery.offset_flush_interval,
        segment_bytes=delivery.log_segment_size,
        retention=delivery.log_retention,
        staging=options.staging,
        log=options.log_url,
        slots=slots,
    )
    context = StepContext(bound.compiled, store, jobs, acks, settings)
    index_letters(store, context.archive)
    return context
