"""Objects that the lines of a step share during one run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from conduit_dagster.config.delivery import LogRetention
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder
from conduit_dagster.engine.delivery_progress import DeliveryHashes
from conduit_dagster.engine.processor_state import ProcessorStateFiles, state_folder
from conduit_dagster.engine.registering import reads_same
from conduit_dagster.engine.resolve import NackWindow
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Destination, Limit, Position, Target
from conduit_dagster.state.delivery_store import Offsets
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import Plan, Range, StagedDelivery
from conduit_dagster.state.store import PipelineStore


class SourceAcks:
    """Acker of a run's sources, until it refuses. Safe to call from several threads."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def ack(self, source_node: SourceNode, position: Position, generation: int) -> None:
        """Ack everything up to ``position`` to a source. The position must be durable in the state store.

        Raises ``TransientError`` (``source.closed``) after :meth:`refuse`: code still running then belongs to an
        abandoned run, and the next one may decide differently.
        """
        if self._closed.is_set():
            raise TransientError(
                "the source is closed: its run was abandoned", code="source.closed", node=source_node.node
            )
        blamed(source_node.node, source_node.source.ack, position, generation)

    def refuse(self) -> None:
        """Refuse all further acks."""
        self._closed.set()


@dataclass(frozen=True)
class StepSettings:
    """Settings of a pipeline's steps, from its file and from the run's options."""

    limit: Limit
    """Maximum records and bytes of a step."""
    window: NackWindow
    bisect: bool
    """Whether a delivery that failed in bulk is halved, instead of sent one record at a time."""
    flush_interval: float
    """Seconds between two writes of a direct destination's acks."""
    segment_bytes: int
    """Size at which a log segment is closed."""
    retention: LogRetention | None
    """Handled entries that compaction leaves in the log."""
    staging: str
    """URL of the staging folder."""
    log: str
    """URL of the folder for permanent files: commit logs, archived dead letters, processors' state."""
    slots: Callable[[], int]
    """Tasks that run at once; a cluster's number may change from step to step."""


@dataclass
class StepContext:
    """One per run, passed to everything that takes part in a step."""

    pipeline: CompiledPipeline
    store: PipelineStore
    jobs: Jobs
    acks: SourceAcks
    settings: StepSettings
    name: str = field(init=False)
    """The pipeline's id."""
    consumers: Mapping[str, Destination] = field(init=False)
    """Destinations by id, the dead-letter queue first."""
    state: PipelineState = field(init=False)
    """Kept equal to the store: each transaction of a step is applied here as well."""
    archive: Archive = field(init=False)
    processor_states: ProcessorStateFiles = field(init=False)
    hashes: DeliveryHashes = field(init=False)
    step_slots: Callable[[], int] = field(init=False)
    """Tasks of a step: one if processors are stateful, which need all records in order."""
    program: bytes = field(init=False)
    """The program as tasks receive it."""

    def __post_init__(self) -> None:
        self.name, self.consumers = self.pipeline.program.pipeline, self.pipeline.consumers
        log = self.settings.log
        self.archive = Archive(archive_folder(log, self.name))
        self.processor_states = ProcessorStateFiles(state_folder(log, self.name))
        self.hashes = DeliveryHashes(self.pipeline)
        self.step_slots = (lambda: 1) if self.pipeline.stateful else self.settings.slots
        self.program = msgspec.msgpack.encode(self.pipeline.program)
        self.reload()

    def reload(self) -> None:
        """Load the state from the store, after connectors were retired or registered."""
        self.state = self.store.load()
        self._acked: dict[str, SourceNode] | None = None

    def node(self, connector: str) -> str:
        """Return a connector's id prefixed with the pipeline's."""
        return node_id(self.name, connector)

    def ack(self, span: Range) -> None:
        """Ack a range of a step, once its end is stored; not to a source that reads other data meanwhile."""
        if source_node := self.acked_sources.get(span.source):
            self.acks.ack(source_node, span.end, span.generation)

    @property
    def acked_sources(self) -> Mapping[str, SourceNode]:
        """Sources to ack, by id: those that still read the data registered in the store.

        A stored position is meaningless for any other source.
        """
        if self._acked is None:
            inputs = self.pipeline.inputs
            self._acked = {
                source_node.id: source_node
                for source_node in inputs
                if reads_same(self.pipeline, source_node, self.state)
            }
        return self._acked

    def delivered(self, plan: Plan, staged: StagedDelivery, records: int, target: Target, offsets: Offsets) -> None:
        """Record that a destination has a delivery, with the next target and its consumer's offsets."""
        self.store.deliveries.delivered(plan.step, staged.consumer, records, target, offsets, staged.skip)
        self.state.delivered(staged.consumer, target)
