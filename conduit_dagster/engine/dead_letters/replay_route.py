"""Nodes and destinations that a replayed record still has to pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, DestinationNode
from conduit_dagster.engine.dead_letters.letter_layout import PIECES
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import Nack
from conduit_dagster.sdk import Replayed


class Branch(NamedTuple):
    """A destination, and the nodes that records pass from the fan-out to it."""

    rank: int
    """Its place in the file, from 1."""
    destination_node: DestinationNode
    nodes: Sequence[Step]


class ReplayRoute(NamedTuple):
    """Route of replayed records."""

    nodes: Sequence[Step]
    branches: Sequence[Branch]


def way_of(pipeline: CompiledPipeline, source_node: SourceNode, replayed: Replayed) -> ReplayRoute | Nack:
    """Return the route from the source, or from the nacking node, to the destinations that have no copy of the record.

    Returns a nack with the reason if there is no such route any more.
    """
    if PIECES in replayed.missed:
        message = "it failed in pieces, of which others went on: export it, and send what is missing yourself"
        return Nack("dead_letters.in_pieces", message)
    branches = list(_branches(pipeline, replayed.missed))
    if not branches:
        gone = ", ".join(replayed.missed)
        return Nack("dead_letters.no_destination", f"{gone} is not in the pipeline's file any more: discard the letter")
    every = [*source_node.nodes, *pipeline.nodes]
    if pipeline.program.fan_in == "join" and not _is_behind(every, pipeline, replayed.node):
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
    """Return the nodes except those that remember records and have seen this one, as far as that is known.

    To those it would be a duplicate of a record that came since, and be lost. ``before``: nodes in front of these.
    """
    if nacked_by in before:
        return nodes
    names = [step.node for step in nodes]
    # a node that has left the file may have been behind all of them
    passed = names.index(nacked_by) if nacked_by in names else len(names)
    return [step for i, step in enumerate(nodes) if i >= passed or step.node not in pipeline.remembering]


def _is_behind(every: Sequence[Step], pipeline: CompiledPipeline, node: str) -> bool:
    own = [
        name
        for destination_node in pipeline.outputs
        for name in (destination_node.node, *(step.node for step in destination_node.nodes))
    ]
    return node in own or any(step.node == node for step in every)


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
            # the destination's own filter has its name as well: what failed at the destination is behind all nodes
            place = len(names) - 1 if node == branch.destination_node.node else names.index(node)
            return ReplayRoute(edits, [branch._replace(nodes=branch.nodes[place:])])
    return Nack("dead_letters.no_node", f"{node} is not in the pipeline's file any more: replay it from its source")
