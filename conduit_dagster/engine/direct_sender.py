"""Publishing to a direct destination: a second Spark job whose acks become durable while it runs."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from conduit_dagster.engine.acks import Acked, newest
from conduit_dagster.engine.offset_updates import generations
from conduit_dagster.engine.sending import SendJob, Sent, send_task
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.state.steps import DeliveryChild, Plan, StagedDelivery


def send_directly(
    context: StepContext,
    plan: Plan,
    delivery: StagedDelivery,
    piece: DeliveryChild,
    skipped: dict[str, int],
    flushed: Callable[[Acked], bool] = lambda _: True,
) -> Sent:
    """Send a piece of a staged delivery, by a Spark job of one task.

    ``skipped``: by namespace, the place of the last record that an earlier job's destination acked. ``flushed`` is
    called with the acks as they become durable. It returns False if it could not store them, and is then called again
    with the same acks.
    """
    token, interval = secrets.token_hex(8), context.settings.flush_interval
    job = SendJob(
        delivery.consumer, plan.step, plan.clock_ns, delivery, piece.skip, piece.take, skipped, piece.single, interval,
        token, plan.hashes, generations(plan),
    )  # fmt: skip
    task, ended = partial(send_task, context.program, msgspec.msgpack.encode(job)), threading.Event()
    follow = partial(_follow, delivery.staging, job, flushed, ended)
    thread = threading.Thread(target=follow, name=f"acks-of-{delivery.consumer}", daemon=True)
    thread.start()
    try:
        (row,) = context.jobs.each(1, task)
    finally:
        ended.set()
        thread.join()
    return msgspec.msgpack.decode(row, type=Sent)


def _follow(staging: str, job: SendJob, flushed: Callable[[Acked], bool], ended: threading.Event) -> None:
    known: list[Acked] = []
    while not ended.wait(job.interval):
        try:
            found = newest(staging, job.token)
        except OSError:
            continue  # an unavailable file system is reported when the job ends
        if found and found != known and flushed(found[0]):
            known = found
