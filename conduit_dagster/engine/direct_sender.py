"""Publishing to a direct destination: a second Spark job whose acks become durable while it runs."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import msgspec

from conduit_dagster.engine.acks import Acked, newest
from conduit_dagster.engine.offset_updates import generations
from conduit_dagster.engine.sending import SENT_SCHEMA, SendJob, Sent, run_sender
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.state.steps import Plan, StagedDelivery


class DirectSender:
    """Sender of ranges of staged deliveries, by Spark jobs of one task."""

    def __init__(self, context: StepContext) -> None:
        self._context, self._interval = context, context.settings.flush_interval

    def send(
        self,
        plan: Plan,
        delivery: StagedDelivery,
        first: int,
        count: int,
        skipped: dict[str, int],
        single: bool,
        flushed: Callable[[Acked], bool] = lambda _: True,
    ) -> Sent:
        """Send ``count`` records starting at ``first``.

        ``flushed`` is called with the acks as they become durable. It returns False if it could not store them, and is
        then called again with the same acks.
        """
        token = secrets.token_hex(8)
        job = SendJob(
            delivery.consumer, plan.step, plan.clock_ns, delivery, first, count, skipped, single, self._interval,
            token, plan.hashes, generations(plan),
        )  # fmt: skip
        function = partial(run_sender, self._context.program, msgspec.msgpack.encode(job))
        with self._following(delivery.staging, token, flushed):
            (row,) = self._context.jobs.each(1, function, SENT_SCHEMA)
        return msgspec.msgpack.decode(row, type=Sent)

    @contextmanager
    def _following(self, staging: str, token: str, flushed: Callable[[Acked], bool]) -> Generator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(staging, token, flushed, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _follow(self, staging: str, token: str, flushed: Callable[[Acked], bool], ended: threading.Event) -> None:
        known: list[Acked] = []
        while not ended.wait(self._interval):
            try:
                found = newest(staging, token)
            except OSError:
                continue  # an unavailable file system is reported when the job ends
            if found and found != known and flushed(found[0]):
                known = found
