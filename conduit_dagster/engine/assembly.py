"""Construction of a pipeline's step loop."""

from __future__ import annotations

from collections.abc import Callable

from conduit_dagster.engine.appender import Appender
from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder
from conduit_dagster.engine.direct_sender import DirectSender
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.nack_window import NackWindow
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.engine.processor_state import Memories, memory_folder
from conduit_dagster.engine.publish import Publisher
from conduit_dagster.engine.report import StepReport
from conduit_dagster.engine.restage import Restaged
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.source_acks import SourceAcks
from conduit_dagster.engine.stager import Stager
from conduit_dagster.engine.step_log import StepLog
from conduit_dagster.sdk import Limit
from conduit_dagster.state.store import PipelineStore


def make_loop(
    bound: BoundPipeline,
    store: PipelineStore,
    jobs: Jobs,
    staging: str,
    log: str,
    slots: int,
    appender: Appender | None,
    report: Callable[[StepReport], None],
    acks: SourceAcks | None = None,
) -> StepLoop:
    """Return a step loop that continues from the stored state. With an ``appender`` it reads through the log.

    ``staging`` and ``log`` are URLs, of staged data and of data that is kept permanently.
    """
    pipeline, delivery, queue = bound.compiled, bound.config.delivery, bound.config.dead_letter_queue
    state = store.load()
    window = NackWindow(queue.window_size, queue.window_nack_threshold)
    archive = Archive(archive_folder(log, bound.id))
    # stateful processors need all records in one order, hence a single slot
    slots = 1 if pipeline.remembering else slots
    memories = Memories(memory_folder(log, bound.id))
    stager = Stager(jobs, pipeline, staging, archive, memories, slots, store.epoch)
    restaged = Restaged(pipeline, state, stager)
    direct = DirectSender(pipeline, jobs, delivery.offset_flush_interval)
    bisect = delivery.redelivery == "bisect"
    acks = acks or SourceAcks(pipeline)
    publisher = Publisher(pipeline, store, state, window, direct, restaged, archive, bisect, acks)
    limit = Limit(delivery.batch_size, delivery.batch_bytes)
    step_log = StepLog(pipeline, appender, stager, slots) if appender is not None else None
    return StepLoop(pipeline, store, state, stager, restaged, publisher, window, limit, step_log, report)
