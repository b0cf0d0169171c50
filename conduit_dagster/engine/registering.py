"""Registration of a pipeline's connectors before the first step, and whether they still read the registered data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial

import sqlalchemy as sa

from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.commit_log.splits import LogManifest
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.dead_letters.archive import archive_folder
from conduit_dagster.engine.dead_letters.replay_source import ReplaySource
from conduit_dagster.engine.log_source import JoinSource, LogSource
from conduit_dagster.engine.plugin_results import initial_of, owned_fix
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import KeptValues, Position
from conduit_dagster.state.catch_ups import sent_ranges
from conduit_dagster.state.connector_registrations import Registry, SourceUnit
from conduit_dagster.state.kept_values import KeptReader
from conduit_dagster.state.lease import free_silent
from conduit_dagster.state.log_registry import LogRegistry
from conduit_dagster.state.pipeline_state import LOGGED, PipelineState, SourceState
from conduit_dagster.state.steps import Plan
from conduit_dagster.state.store import PipelineStore


def fence(pipeline: CompiledPipeline, store: PipelineStore) -> None:
    """Fence off earlier owners at each destination: end what a frozen one holds open, so that nothing waits for it."""
    name = pipeline.program.pipeline
    for consumer, destination in pipeline.consumers.items():
        blamed(node_id(name, consumer), destination.fence, store.epoch)
    reached("after-fence", name)


class _Owned(FatalError):  # noqa: N818  # it describes the resource
    """Raised for a resource that a consumer of another pipeline owns."""

    def __init__(self, thing: str, owner: tuple[str, str], ours: tuple[str, str]) -> None:
        """``owner``: the other pipeline, and its consumer; ``ours``: this one, and its consumer."""
        other, mine = shlex.quote(owner[0]), shlex.quote(ours[0])
        super().__init__(
            f"{thing} is written by {owner[1]} of pipeline {owner[0]} already",
            code="destination.owned",
            node=node_id(*ours),
            fix=f"{owned_fix(thing)}; or, if that pipeline was renamed to this one, conduit-dagster pipelines stop "
            f"{other} (pipelines delete {other} if it left an open step), then conduit-dagster pipelines start {mine}",
        )
        self.pipeline = owner[0]


def register(pipeline: CompiledPipeline, store: PipelineStore) -> None:
    """Register every source and consumer, and each destination's resource, in one transaction; then run each ``check``.

    Only when no step is open (:func:`~conduit_dagster.engine.recover.recover`): a step ends with the consumers, sources
    and generations that it was planned with, and a newcomer's catch-up depends on the sources' positions at that time.
    Raises ``FatalError`` (``destination.owned``, ``log.not_read_up``) with nothing registered, and the errors of
    ``check``.
    """
    name, consumers = pipeline.program.pipeline, pipeline.consumers
    owned = {consumer: destination.owned for consumer, destination in consumers.items()}
    initials = _initials(pipeline)
    work = partial(_register, pipeline, initials, owned)
    try:
        store.registering(work)
    except _Owned as error:
        # its owner may have died with another machine
        if not free_silent(store.engine, error.pipeline, store.lease_seconds):
            raise
        store.registering(work)
    for consumer, destination in consumers.items():
        blamed(node_id(name, consumer), destination.check)
    reached("after-register", name)


def retire(pipeline: CompiledPipeline, store: PipelineStore) -> None:
    """Retire consumers removed from the file, before open steps end: those finish without them.

    A consumer that is restored later is a new one, at whatever point a run was killed: it must not be mistaken for one
    that received a step that ended without it. A path that is no longer written to becomes free for other destinations.
    """
    owned = {consumer: destination.owned for consumer, destination in pipeline.consumers.items()}
    store.registering(lambda registry, logs: _give_up(registry, logs, owned))


def _give_up(registry: Registry, logs: LogRegistry, owned: Mapping[str, str | None]) -> None:
    registry.retire(set(owned))
    logs.catch_ups.retire(owned)
    registry.release_others({thing for thing in owned.values() if thing is not None})


def _register(
    pipeline: CompiledPipeline,
    initials: Mapping[str, Position],
    owned: Mapping[str, str | None],
    registry: Registry,
    logs: LogRegistry,
) -> None:
    _register_sources(pipeline, initials, registry, logs)
    _register_catch_ups(pipeline, logs)
    for consumer in owned:
        registry.register_consumer(consumer, "dlq" if consumer == DEAD_LETTERS else "data")
    # in a fixed order, so that two pipelines that claim the same resources never deadlock
    for thing, consumer in sorted((thing, consumer) for consumer, thing in owned.items() if thing is not None):
        if other := registry.claim(thing, consumer):
            raise _Owned(thing, other, (pipeline.program.pipeline, consumer))


def register_sources(pipeline: CompiledPipeline, store: PipelineStore) -> None:
    """Register every source as currently configured. Only when no step is open.

    Raises ``FatalError`` (``log.not_read_up``).
    """
    initials = _initials(pipeline)
    store.registering(lambda registry, logs: _register_sources(pipeline, initials, registry, logs))


def _initials(pipeline: CompiledPipeline) -> dict[str, Position]:
    """Return each source's initial position. Called before the transaction: a source may be slow to answer."""
    return {node.id: initial_of(node.node, node.source) for node in pipeline.sources}


def _register_sources(
    pipeline: CompiledPipeline, initials: Mapping[str, Position], registry: Registry, logs: LogRegistry
) -> None:
    for source_node in pipeline.sources:
        if source_node.nodes:
            logs.require_logged_for(source_node.id, joined=pipeline.program.fan_in == "join")
    logs.leave({source_node.id for source_node in pipeline.inputs})
    registry.readers.retire({source_node.id for source_node in pipeline.sources})
    for source_node in pipeline.sources:
        unit = unit_of(pipeline, source_node)
        initial = registry.readers.admit(source_node.id, source_node.source.unit, initials[source_node.id])
        if pipeline.program.log == "records":
            logs.register(source_node.id, unit, initial)
        else:
            logs.unlog(source_node.id)
            registry.register_source(source_node.id, unit, initial)
    for source_node in pipeline.inputs:
        if isinstance(source_node.source, JoinSource):
            logs.register_joined(source_node.id, unit_of(pipeline, source_node), list(source_node.source.members))


def _register_catch_ups(pipeline: CompiledPipeline, logs: LogRegistry) -> None:
    # before the consumers themselves: a consumer that is already known never becomes new again
    late = [source_node for source_node in pipeline.inputs if source_node.only]
    logs.catch_ups.drop_others({node.id for node in late}, {node.id for node in pipeline.sources})
    for source_node in late:
        logs.catch_ups.register(source_node.id, source_node.origin, source_node.only)


def attach_kept(pipeline: CompiledPipeline, store: PipelineStore) -> None:
    """Attach to each source the values that its positions refer to, for the owner of the pipeline's lease."""
    for source_node in pipeline.sources:
        values = store.kept_values(source_node.id)
        blamed(source_node.node, source_node.source.attach_kept, KeptValues(values.get, values.put))


def attach_kept_to_look(pipeline: CompiledPipeline, database: sa.Engine) -> None:
    """Attach to each source the values that its positions refer to, for a read-only command."""
    for source_node in pipeline.sources:
        values = KeptReader(database, pipeline.program.pipeline, source_node.id)
        blamed(source_node.node, source_node.source.attach_kept, KeptValues(values.get))


def attach_logs(pipeline: CompiledPipeline, store: PipelineStore, base: str) -> None:
    """Attach the log's manifest to sources read through their log, and the index to sources of dead letters."""
    replays = [source_node.source for source_node in pipeline.inputs if isinstance(source_node.source, ReplaySource)]
    if replays:
        folder = archive_folder(base, pipeline.program.pipeline)
        every = [destination_node.id for destination_node in pipeline.outputs]
        units = [source.unit for source in store.load().sources.values() if source.late]
        for source in replays:
            mine = [unit for unit in units if unit["source"] == source.origin]
            late = {unit["destination"]: sent_ranges(unit) for unit in mine}
            source.attach(store.replays, folder, late, every)
    for source_node in pipeline.inputs:
        for name, source in _logged(source_node).items():
            log = LogFolder(base, pipeline.program.pipeline, name, source.reader)
            source.attach(LogManifest(store.transactions.read, log))


def _logged(source_node: SourceNode) -> Mapping[str, LogSource]:
    source = source_node.source
    if isinstance(source, JoinSource):
        return source.members
    return {source_node.origin: source} if isinstance(source, LogSource) else {}


def unit_of(pipeline: CompiledPipeline, node: SourceNode) -> SourceUnit:
    """Return the identity of the data that a source reads."""
    return SourceUnit(node.source.unit, pipeline.program.root)


def reads_same(pipeline: CompiledPipeline, node: SourceNode | None, state: PipelineState) -> bool:
    """Return whether the source still reads the data registered in the store, with positions of the same kind.

    The stored generation, positions and offsets are meaningless for any other data.
    """
    known = None if node is None else state.sources.get(node.id)
    if node is None or known is None:
        return False
    if node.is_replay:
        return known.is_replay
    if node.only:
        return known.late == node.only and _is_same(pipeline, node, state.sources.get(node.origin))
    return _is_same(pipeline, node, known)


def _is_same(pipeline: CompiledPipeline, node: SourceNode, known: SourceState | None) -> bool:
    is_logged = isinstance(node.source, LogSource)
    return (
        known is not None
        and is_logged == bool(known.unit.get(LOGGED))
        and unit_of(pipeline, node).is_same_as(known.unit)
    )


def changed_source(pipeline: CompiledPipeline, plan: Plan, state: PipelineState) -> str | None:
    """Return a source of the step that was removed or now refers to other data; None if all can still be read."""
    for span in plan.ranges:
        if not reads_same(pipeline, pipeline.find_source(span.source), state):
            return span.source
    return None
