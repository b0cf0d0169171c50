"""Acks to the sources of one run, and their end."""

from __future__ import annotations

import threading

import structlog

from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.error_context import blamed
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Position

log = structlog.get_logger("conduit.engine")


class SourceAcks:
    """Acker of a run's sources, until they are closed. Safe to call from several threads."""

    def __init__(self, pipeline: CompiledPipeline) -> None:
        self._pipeline = pipeline
        self._closed = threading.Event()

    def ack(self, inlet: SourceNode, position: Position, generation: int) -> None:
        """Ack everything up to ``position`` to a source. The position must be durable in the state store.

        Raises ``TransientError`` (``source.closed``) after :meth:`refuse`: what still runs then is of a run that was
        given up, and the next one may have another answer.
        """
        node = node_id(self._pipeline.program.pipeline, inlet.id)
        if self._closed.is_set():
            raise TransientError("the source is closed: its run was given up", code="source.closed", node=node)
        blamed(node, inlet.source.ack, position, generation)

    def refuse(self) -> None:
        """Refuse all further acks."""
        self._closed.set()

    def close(self) -> None:
        """Refuse further acks and close every source. A failing close is only logged: the run has its result."""
        self.refuse()
        for inlet in {id(inlet.source): inlet for inlet in (*self._pipeline.inlets, *self._pipeline.sources)}.values():
            try:
                inlet.source.close()
            except Exception as error:  # noqa: BLE001  # the others are closed all the same
                log.warning("a source could not be closed", source=inlet.id, cause=str(error))
