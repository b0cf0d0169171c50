"""A program compiled for execution: plugins found, settings parsed, conditions compiled. Cached per worker process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from conduit_dagster.builtin_plugins import DESTINATIONS, PROCESSORS, SOURCES, BuiltinPlugins
from conduit_dagster.engine.nodes import Node, Step, filter_nodes, selects_of
from conduit_dagster.engine.plugin_loading import Plugins, load_plugins
from conduit_dagster.engine.plugin_results import set_up
from conduit_dagster.engine.processor_state import StatefulNode
from conduit_dagster.engine.program import ConnectorSpec, ProcessorSpec, Program
from conduit_dagster.engine.redaction import Redaction
from conduit_dagster.engine.source_nodes import SourceNode, inputs_of, replay_inputs
from conduit_dagster.expressions import Clock, compile_condition, reads_key
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.sdk import ConnectorContext, Destination, Keys, Processor, ProcessorContext
from conduit_dagster.sdk.context import IdempotencyKeys
from conduit_dagster.sdk.processor import StatefulProcessor
from conduit_dagster.sdk.promises import keeps
from conduit_dagster.secret_values import hide, remember, remember_credentials
from conduit_dagster.spark.explain import version_differs
from conduit_dagster.spark.sql.query import SqlQuery

DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True)
class DestinationNode:
    """A destination with the nodes that its records pass after the fan-out."""

    id: str
    node: str
    destination: Destination
    nodes: Sequence[Step]

    @property
    def needs_own_records(self) -> bool:
        """Whether the branch may change its records, and so needs its own copies (CASES C21)."""
        return bool(self.nodes) or self.destination.changes_records


@dataclass(frozen=True)
class CompiledPipeline:
    """All parts of a pipeline that handle records."""

    program: Program
    clock: Clock
    idempotency: IdempotencyKeys
    sources: Sequence[SourceNode]
    """The pipeline's own sources."""
    inputs: Sequence[SourceNode]
    """Inputs of a step: the sources, or their logs."""
    nodes: Sequence[Step]
    outputs: Sequence[DestinationNode]
    dead_letters: DestinationNode
    """The dead-letter queue, with the processors of the letters."""
    consumers: Mapping[str, Destination]
    """All destinations by id, the dead-letter queue first: it is published first (DELIVERY.md, Publish)."""
    redaction: Redaction
    reads_keys: Keys
    """Which record keys any part of the pipeline may read."""
    stateful: Mapping[str, StatefulNode]
    """Stateful processors by node: those that keep state across steps."""
    queries: Mapping[str, SqlQuery]
    """Queries that processors run in Spark, by node."""

    def source_node(self, source: str) -> SourceNode:
        """Return the node of a source. Raises ``FatalError`` if an open step needs a source removed from the file."""
        if (source_node := self.find_source(source)) is not None:
            return source_node
        raise FatalError(
            f"an open step reads {source}, which the pipeline's file has no more",
            code="source.removed",
            node=node_id(self.program.pipeline, source),
            fix="put the source back, let the pipeline finish the step (run --once), then remove it",
        )

    @property
    def reads(self) -> str:
        """Kind of ranges that its steps read (``Plan.reads``)."""
        if self.program.log != "records":
            return "positions"
        return "join" if self.program.fan_in == "join" else "records"

    def replay_of(self, source: str) -> int:
        """Return the id of the replay that a source of dead letters belongs to; 0 for any other source."""
        source_node, replay = self.find_source(source), self.program.replay
        return replay.id if replay is not None and source_node is not None and source_node.is_replay else 0

    def find_source(self, source: str) -> SourceNode | None:
        """Return the node of a source; None if it was removed from the file."""
        return next((source_node for source_node in self.inputs if source_node.id == source), None)

    def takes_rows(self, source_node: SourceNode) -> bool:
        """Return whether records stay columns: the source yields columns and nothing needs them as documents."""
        chains = [source_node.nodes, self.nodes, *(destination_node.nodes for destination_node in self.outputs)]
        are_taken = all(destination_node.destination.takes_rows for destination_node in self.outputs)
        return source_node.source.gives_rows and are_taken and not any(chains)

    def begin_step(
        self, clock_ns: int, hashes: Mapping[str, str] | None = None, generations: Mapping[str, int] | None = None
    ) -> None:
        """Set the clock and the idempotency keys that the pipeline's connectors and processors see.

        Keys that are left out keep their values. The pipeline is cached between steps, so call this before any record
        of a step; in a task it handles one step at a time.
        """
        self.clock.now_ns = clock_ns
        if hashes is not None:
            self.idempotency.hashes = dict(hashes)
        if generations is not None:
            self.idempotency.generations = dict(generations)


_EDIT = ":~replay:set-"


def edit_node(pipeline: str, number: int) -> str:
    """Return the node id of an edit of a replay. No connector or processor id begins with ``~``."""
    return f"{pipeline}{_EDIT}{number + 1}"


def is_edit(node: str) -> bool:
    """Return whether a node id was made by :func:`edit_node`."""
    return _EDIT in node


@lru_cache(maxsize=64)
def compile_encoded(data: bytes) -> CompiledPipeline:
    """Return the compiled pipeline of an encoded program; compiled once per worker."""
    return compile_program(msgspec.msgpack.decode(data, type=Program))


def compile_program(
    program: Program, plugins: Plugins | None = None, instead: Mapping[str, Processor] | None = None
) -> CompiledPipeline:
    """Bind a program to its plugins. ``instead``: processors that replace those of the file, by node.

    From then on this process masks the program's secrets. Raises an error for anything that validation would have
    found.
    """
    _remember_secrets(program)
    if plugins is None:
        plugins = load_plugins(program.plugins, program.installed)
        _require_same_packages(program, plugins)
    return _Maker(program, plugins, instead or {}).pipeline()


def _require_same_packages(program: Program, plugins: Plugins) -> None:
    """Raise ``FatalError`` (``spark.version_differs``) if a task has another version of a package than the driver."""
    for name, version in dict(plugins.packages.values()).items():
        if (planned := program.packages.get(name, version)) != version:
            raise version_differs(f"{name} {version}", planned)


def _remember_secrets(program: Program) -> None:
    remember(program.secrets)
    connectors = [*program.sources, *program.destinations, program.dead_letters]
    for spec in (*connectors, *program.processors, *(inner for one in connectors for inner in one.processors)):
        remember_credentials(spec.settings, spec.plugin)


class _Maker:
    def __init__(self, program: Program, plugins: Plugins, instead: Mapping[str, Processor]) -> None:
        self._program, self._plugins, self._instead, self._clock = program, plugins, instead, Clock()
        self._redaction = Redaction(program.redact)
        self._idempotency = IdempotencyKeys()
        self._processors: list[Processor] = []
        self._stateful: dict[str, StatefulNode] = {}
        self._queries: dict[str, SqlQuery] = {}

    def pipeline(self) -> CompiledPipeline:
        program = self._program
        sources = [self._source_node(spec) for spec in program.sources]
        inputs = inputs_of(program, sources)
        inputs = [*inputs, *replay_inputs(program, inputs, self._edits())]
        nodes = [self._node(spec) for spec in program.processors]
        outputs = [self._destination_node(spec, spec.id) for spec in program.destinations]
        queue = self._destination_node(program.dead_letters)
        redaction = self._redaction
        keys = max(_keys_read_by(destination_node.destination) for destination_node in outputs)
        # a condition may read the key as well
        if any(processor.reads_key for processor in self._processors) or self._has_condition_on_key():
            keys = Keys.ALL
        elif any(processor.reads_position for processor in self._processors):
            keys = max(keys, Keys.POSITIONS)
        consumers = {
            DEAD_LETTERS: queue.destination,
            **{destination_node.id: destination_node.destination for destination_node in outputs},
        }
        idempotency, stateful = self._idempotency, self._stateful
        return CompiledPipeline(
            program, self._clock, idempotency, sources, inputs, nodes, outputs, queue, consumers, redaction, keys,
            stateful, self._queries,
        )  # fmt: skip

    def _edits(self) -> list[Step]:
        edits = self._program.replay.edits if self._program.replay else []
        return [
            self._node(ProcessorSpec(edit_node(self._program.pipeline, i), "field.set", {"field": f, "expression": e}))
            for i, (f, e) in enumerate(edits)
        ]

    def _has_condition_on_key(self) -> bool:
        connectors = [*self._program.sources, *self._program.destinations]
        specs = [*self._program.processors, *(spec for connector in connectors for spec in connector.processors)]
        conditions = [spec.condition for spec in (*connectors, *specs) if spec.condition]
        return any(reads_key(compile_condition(one, self._clock).names) for one in conditions)

    def _context(self, spec: ConnectorSpec) -> ConnectorContext:
        program = self._program
        return ConnectorContext(program.pipeline, spec.id, program.root, self._clock, program.strategy)

    def _source_node(self, spec: ConnectorSpec) -> SourceNode:
        kind = SOURCES.find(spec.plugin, self._plugins.sources)
        if kind is None:
            raise self._missing(SOURCES, spec.plugin, self._plugins.sources)
        node = node_id(self._program.pipeline, spec.id)
        with _naming(node):
            source = set_up(kind, spec.settings, self._context(spec))
        return SourceNode(spec.id, node, source, self._around(spec))

    def _around(self, spec: ConnectorSpec, consumer: str = "") -> list[Step]:
        before = filter_nodes(node_id(self._program.pipeline, spec.id), spec.namespace, spec.condition, self._clock)
        return [*before, *(self._node(processor, consumer) for processor in spec.processors)]

    def _destination_node(self, spec: ConnectorSpec, consumer: str = "") -> DestinationNode:
        kind = DESTINATIONS.find(spec.plugin, self._plugins.destinations)
        if kind is None:
            raise self._missing(DESTINATIONS, spec.plugin, self._plugins.destinations)
        node = node_id(self._program.pipeline, spec.id)
        with _naming(node):
            destination = set_up(kind, spec.settings, self._context(spec))
        return DestinationNode(spec.id, node, destination, self._around(spec, consumer))

    def _node(self, spec: ProcessorSpec, consumer: str = "") -> Node:
        processor = self._instead.get(spec.node) or self._processor(spec, consumer)
        self._processors.append(processor)
        if isinstance(processor, StatefulProcessor):
            self._stateful[spec.node] = StatefulNode(processor)
        if processor.query is not None:
            self._queries[spec.node] = processor.query
        return Node(spec.node, processor, selects_of(spec.namespace, spec.condition, self._clock))

    def _processor(self, spec: ProcessorSpec, consumer: str) -> Processor:
        kind = PROCESSORS.find(spec.plugin, self._plugins.processors)
        if kind is None:
            raise self._missing(PROCESSORS, spec.plugin, self._plugins.processors)
        context = ProcessorContext(
            self._program.pipeline, spec.node, self._clock, consumer, self._idempotency, self._redaction.record
        )
        with _naming(spec.node):
            return set_up(kind, spec.settings, context)

    def _missing(self, kinds: BuiltinPlugins[Any], plugin: str, own: Mapping[str, type[Any]]) -> FatalError:
        """Return the error for a plugin that the driver has, since it checked the file, and this process has not."""
        told = "".join(f"; {error.file}: {error}" for error in self._plugins.errors)
        return kinds.not_installed(plugin, own) or FatalError(
            f"there is no {kinds.noun} {plugin} on {socket.gethostname()}, where a task runs{told}",
            code="plugin.unknown",
            fix="install the package that gives it wherever tasks run, in the driver's version;"
            " a Spark server that was started before it was installed ends with conduit-dagster spark stop",
        )


@contextmanager
def _naming(node: str) -> Generator[None]:
    """Add the node's id to an error raised while its plugin is set up."""
    try:
        yield
    except ConduitError as error:
        error.set_node(node)
        raise


def _keys_read_by(destination: Destination) -> Keys:
    # a built-in's settings do not tell what a writer of the class that derives from it reads
    is_known = keeps(type(destination), "reads_keys", ("writer",)) or "reads_keys" not in vars(destination)
    return destination.reads_keys if is_known else Keys.ALL


def close(kind: str, name: str, closing: Callable[[], object]) -> None:
    """Call a connector's ``close``. A failure is only logged: the result stands, and the others are closed."""
    try:
        closing()
    except Exception as error:  # noqa: BLE001  # code of any author
        import structlog  # imported late: read-only commands compile pipelines, and log nothing

        log = structlog.get_logger("conduit.engine")
        log.warning(f"a {kind} could not be closed", **{kind: name}, cause=hide(str(error)))


def close_sources(pipeline: CompiledPipeline) -> None:
    """Close every source of a pipeline, each once."""
    nodes = {id(node.source): node for node in (*pipeline.inputs, *pipeline.sources)}
    for node in nodes.values():
        close("source", node.id, node.source.close)


def close_connectors(pipeline: CompiledPipeline) -> None:
    """Close every source and destination of a pipeline."""
    close_sources(pipeline)
    for name, destination in pipeline.consumers.items():
        close("destination", name, destination.close)
