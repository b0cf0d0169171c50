"""Pipelines with the sources of unfinished work: a replay of dead letters, and ranges of the log to be sent again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, DestinationNode, compile_program
from conduit_dagster.engine.dead_letters.letter_layout import PIECES
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.program import Replay
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import Nack
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Replayed
from conduit_dagster.sdk.staging import discard_file
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.steps import Plan
from conduit_dagster.state.store import PipelineStore


class Branch(NamedTuple):
    """A destination, and the nodes that records pass from the fan-out to it."""

    rank: int
    """Position of the destination in the file, from 1."""
    destination_node: DestinationNode
    nodes: Sequence[Step]


class ReplayRoute(NamedTuple):
    """Route of replayed records."""

    nodes: Sequence[Step]
    branches: Sequence[Branch]


def route_of(pipeline: CompiledPipeline, source_node: SourceNode, replayed: Replayed) -> ReplayRoute | Nack:
    """Return the route from the source, or from the nacking node, to the destinations that have no copy of the record.

    If no such route exists any more, return a nack with the reason.
    """
    if PIECES in replayed.missed:
        message = "it failed in pieces, others went on or were duplicates: export it, and send what is missing yourself"
        return Nack("dead_letters.in_pieces", message)
    branches = list(_branches(pipeline, replayed.missed))
    if not branches:
        gone = ", ".join(replayed.missed)
        return Nack("dead_letters.no_destination", f"{gone} is not in the pipeline's file any more: discard the letter")
    every = [*source_node.nodes, *pipeline.nodes]
    if pipeline.program.fan_in == "join" and _is_before_join(pipeline, replayed.node):
        return Nack(
            "dead_letters.before_join", "it was nacked before it was joined, so its partners went on: discard it"
        )
    if not replayed.at_node:
        source = node_id(pipeline.program.pipeline, source_node.origin)
        before = {source, *(step.node for step in every)}
        nodes = _to_pass(pipeline, every, replayed.node, {source})
        return ReplayRoute(
            nodes, [one._replace(nodes=_to_pass(pipeline, one.nodes, replayed.node, before)) for one in branches]
        )
    edits, rest = every[: source_node.edits], every[source_node.edits :]
    for place, step in enumerate(rest):
        if step.node == replayed.node:
            return ReplayRoute([*edits, *rest[place:]], branches)
    return _within(edits, branches, replayed.node)


def _to_pass(pipeline: CompiledPipeline, nodes: Sequence[Step], nacked_by: str, before: set[str]) -> Sequence[Step]:
    """Return the nodes without stateful processors that, as far as known, have seen this record.

    These would take it for a duplicate of a later record, and it would be lost. ``before``: nodes before these.
    """
    if nacked_by in before:
        return nodes
    names = [step.node for step in nodes]
    # a node removed from the file may have come after all of them
    passed = names.index(nacked_by) if nacked_by in names else len(names)
    return [step for i, step in enumerate(nodes) if i >= passed or step.node not in pipeline.stateful]


def _is_before_join(pipeline: CompiledPipeline, node: str) -> bool:
    """Return whether it is a source, or a processor of one, in the file or not: all others see joined records."""
    return any(f"{node}:".startswith(f"{source_node.node}:") for source_node in pipeline.sources)


def _branches(pipeline: CompiledPipeline, missed: Sequence[str]) -> Iterator[Branch]:
    for rank, destination_node in enumerate(pipeline.outputs, 1):
        if not missed or destination_node.id in missed:
            yield Branch(rank, destination_node, destination_node.nodes)


def _within(edits: Sequence[Step], branches: Sequence[Branch], node: str) -> ReplayRoute | Nack:
    for branch in branches:
        names = [*(step.node for step in branch.nodes), branch.destination_node.node]
        if node in names:
            if len(branches) > 1:
                message = "several destinations have no copy of it: replay it from its source"
                return Nack("dead_letters.several_destinations", message)
            # the destination's filter has the same node id as the destination: a failure at the destination comes after
            # all nodes
            place = len(names) - 1 if node == branch.destination_node.node else names.index(node)
            return ReplayRoute(edits, [branch._replace(nodes=branch.nodes[place:])])
    return Nack("dead_letters.no_node", f"{node} is not in the pipeline's file any more: replay it from its source")


def with_replay(bound: BoundPipeline, replay: Replay) -> BoundPipeline:
    """Return the pipeline with an added source for the dead letters of each of its sources."""
    program = msgspec.structs.replace(bound.program, replay=replay)
    return replace(bound, program=program, compiled=compile_program(program))


def settle_letters(context: StepContext) -> None:
    """Reopen letters of an unfinished replay and remove files that no index names. Call it when no step is open."""
    if any(source.is_replay for source in context.state.sources.values()):
        context.store.replays.give_back()
    folder = context.archive.folder
    # List the files before reading the index, and read the index under our epoch. A frozen owner then never removes
    # files of a newer owner: either it has not listed them, or reading the index fails.
    there = storage.files(folder)
    for name in set(there) - context.store.replays.kept_parts() if there else ():
        discard_file(storage.join(folder, name))


def give_back(store: PipelineStore) -> None:
    """Reopen the letters of a replay that are in no prepared step, and drop a step that is only planned."""
    state = store.load()
    if not any(source.is_replay for source in state.sources.values()):
        return
    planned = next((step.plan for step in state.open_steps if step.decision is None and step.plan.replay), None)
    if planned is not None:
        store.void(planned.step)
    store.replays.give_back(prepared_replay(state))


def prepared_replay(state: PipelineState) -> Plan | None:
    """Return the step of a replay that is prepared and not done; None if there is none."""
    return next((step.plan for step in state.open_steps if step.decision is not None and step.plan.replay), None)


def require_no_memory(bound: BoundPipeline, state: PipelineState) -> None:
    """Raise ``FatalError`` (``positions.remembering``) if records to be sent again would be dropped as duplicates."""
    pending = [one for one in state.sources.values() if one.is_sent_again and one.position < one.unit["upto"]]
    if pending and bound.compiled.stateful:
        nodes = ", ".join(bound.compiled.stateful)
        raise FatalError(
            f"{pending[0].late} is to be sent records again, and {nodes} would take them for duplicates",
            code="positions.remembering",
            node=bound.id,
            fix="remove it from the file until they are sent",
        )


def with_open_work(bound: BoundPipeline, state: PipelineState) -> BoundPipeline:
    """Return the pipeline with the sources of its unfinished work: a prepared replay, and ranges to be sent again."""
    if prepared_replay(state) is not None:
        unit = next(source.unit for source in state.sources.values() if source.is_replay)
        bound = with_replay(bound, msgspec.convert(unit, Replay))
    return with_open_catch_ups(bound, state)


def with_open_catch_ups(bound: BoundPipeline, state: PipelineState) -> BoundPipeline:
    """Return the pipeline with a log source for each destination that is still being sent records again.

    Only destinations whose catch-up, or one of its steps, is not done; the others need no sources of their own any
    more.
    """
    asked = [one for one in state.sources.values() if one.is_sent_again]
    steps = {step.plan.only for step in state.open_steps}
    names = {one.late for one in asked if one.position < one.unit["upto"] or one.late in steps}
    specs = [
        msgspec.structs.replace(spec, from_log=spec.from_log or spec.id in names) for spec in bound.program.destinations
    ]
    if specs == bound.program.destinations:
        return bound
    program = msgspec.structs.replace(bound.program, destinations=specs)
    return replace(bound, program=program, compiled=compile_program(program))


learn(Replay)
