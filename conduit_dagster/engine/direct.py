"""Publishing to a direct destination: a second Spark job, whose acks are made durable while it runs."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import msgspec

from conduit_dagster.engine.ack_file import newest
from conduit_dagster.engine.acks import Acked
from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.jobs import Jobs
from conduit_dagster.engine.moves import generations
from conduit_dagster.engine.sending import SENT_SCHEMA, SendJob, Sent, run_sender
from conduit_dagster.state.steps import Plan, StagedDelivery


class DirectSender:
    """Sends ranges of staged deliveries by Spark jobs of one task."""

    def __init__(self, pipeline: CompiledPipeline, jobs: Jobs, interval: float) -> None:
        self._pipeline = pipeline
        self._program = pipeline.program.encode()
        self._jobs = jobs
        self._interval = interval

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
        """Sends ``count`` records from ``first`` on; ``flushed`` hears of acks as they become durable, of the same ones
        again where it says that it could not keep them."""
        token = secrets.token_hex(8)
        job = SendJob(
            delivery.consumer, plan.step, plan.clock_ns, delivery, first, count, skipped, single, self._interval,
            token, plan.hashes, generations(plan),
        )  # fmt: skip
        function = partial(run_sender, self._program, msgspec.msgpack.encode(job))
        with self._following(delivery.staging, token, flushed):
            (row,) = self._jobs.each(1, function, SENT_SCHEMA)
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
                continue  # of a file system that does not answer the job's own end tells
            if found and found != known and flushed(found[0]):
                known = found
