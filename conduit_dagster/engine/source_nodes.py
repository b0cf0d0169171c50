"""Inputs of a pipeline's steps: its sources, or their logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conduit_dagster.engine.dead_letters.replay_source import ReplaySource, replay_id
from conduit_dagster.engine.log_source import CatchUpSource, JoinSource, LogSource, catch_up_id
from conduit_dagster.engine.nodes import SourceCheck, Step
from conduit_dagster.engine.plugin_results import lag_at
from conduit_dagster.engine.program import Program
from conduit_dagster.node_ids import input_id, node_id
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Position, Source


@dataclass(frozen=True)
class SourceNode:
    """A source with the nodes that its records pass before the fan-in."""

    id: str
    node: str
    source: Source
    nodes: Sequence[Step]
    edits: int = 0
    """Number of nodes that are edits of a replay."""

    def lag(self, known: Mapping[str, Position]) -> int | None:
        """Return how much is unread after its position in ``known``, or after its beginning if not listed there.

        None if the source can't determine it; errors of the source propagate.
        """
        return lag_at(self.source, known[self.id] if self.id in known else self.source.initial())

    def verify(self, start: Position, end: Position) -> None:
        """Check that a range of a step that is not prepared is as it was read.

        Raises ``FatalError`` if not; ``TransientError`` if the source gives such a range up, as the next attempt does.
        """
        try:
            blamed(self.node, self.source.verify, start, end)
        except FatalError as error:
            if not blamed(self.node, self.source.gives_up, start, end):
                raise
            fix = "none is needed: as the settings accept the loss, the next attempt goes on with what is there"
            raise TransientError(error.message, code=error.code, place=error.place, node=error.node, fix=fix) from error

    @property
    def is_replay(self) -> bool:
        """Whether its records are replayed dead letters."""
        return isinstance(self.source, ReplaySource)

    @property
    def only(self) -> str:
        """The destination that catches up on it; empty if it serves all."""
        return self.source.consumer if isinstance(self.source, CatchUpSource) else ""

    @property
    def origin(self) -> str:
        """The connector that the records come from."""
        source = self.source
        if isinstance(source, CatchUpSource):
            return source.source
        return source.origin if isinstance(source, ReplaySource) else self.id


def replay_inputs(program: Program, inputs: Sequence[SourceNode], edits: Sequence[Step]) -> Sequence[SourceNode]:
    """Return a source of dead letters for each source, if the program is that of a replay."""
    replay = program.replay
    if replay is None:
        return []
    return [
        _input(
            program,
            replay_id(node.id),
            ReplaySource(node.source, node.id, replay.id, replay.start == "node"),
            [*edits, SourceCheck(node.node), *node.nodes],
            len(edits),
        )
        for node in inputs
        if not node.only
    ]


def inputs_of(program: Program, sources: Sequence[SourceNode]) -> Sequence[SourceNode]:
    """Return the sources as steps read them: directly, or through their logs."""
    if program.log != "records":
        return sources
    logged = {node.id: LogSource(node.source) for node in sources}
    if program.fan_in == "join":
        # the sources' own processors ran when the records were logged
        return [_input(program, input_id("+".join(logged), "join"), JoinSource(logged), ())]
    late = [spec.id for spec in program.destinations if spec.from_log]
    return [
        *(replace(node, source=logged[node.id]) for node in sources),
        *(
            _input(program, catch_up_id(node.id, name), CatchUpSource(node.source, node.id, name), node.nodes)
            for name in late
            for node in sources
        ),
    ]


def _input(program: Program, name: str, source: Source, nodes: Sequence[Step], edits: int = 0) -> SourceNode:
    return SourceNode(name, node_id(program.pipeline, name), source, nodes, edits)
