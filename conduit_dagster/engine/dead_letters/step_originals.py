"""Single records of a prepared step as their source returned them, read on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conduit_dagster.engine.dead_letters.archive import keep, kept
from conduit_dagster.engine.dead_letters.replay_source import letter_at
from conduit_dagster.engine.dead_letters.split_letters import Originals
from conduit_dagster.engine.delivery_progress import Shipment
from conduit_dagster.engine.offset_updates import span_of
from conduit_dagster.engine.reading import read_blocks
from conduit_dagster.engine.reads_same import changed_source
from conduit_dagster.engine.restage import Restaged
from conduit_dagster.engine.stager import from_rows
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import Block, ReadOptions, StagedRecord
from conduit_dagster.secret_values import hide
from conduit_dagster.state.steps import Decision, Plan


class StepOriginals:
    """Reader of a step's splits, a second time, for the few records that a destination refuses."""

    def __init__(self, context: StepContext, restaged: Restaged) -> None:
        self._context, self._pipeline, self._restaged = context, context.pipeline, restaged
        self._open: dict[str, tuple[int, int, Originals]] = {}
        """By source: the step, the last requested ordinal, and the reader, positioned right after it."""
        self._last: tuple[tuple[int, str, int], bytes] = (-1, "", -1), b""

    def of(self, shipment: Shipment, record: StagedRecord) -> bytes:
        """Return the record in the archive's encoding; a second call for the same record reads nothing.

        Empty if the source or the code has changed since the step was prepared, or if a dead letter has no original: a
        prepared step does not depend on it (DELIVERY.md, When the pipeline changes).
        """
        asked = shipment.plan.step, record.source, record.ordinal
        if self._last[0] != asked:
            find = self._of_letter if shipment.plan.replay else self._of_source
            self._last = asked, find(shipment, record)
        return self._last[1]

    def redact(self, shipment: Shipment, record: StagedRecord, text: str) -> str:
        """Return a text without the redacted values of a record, in its present and its original form."""
        redaction = self._pipeline.redaction
        if not redaction:
            return hide(text)
        original = self.of(shipment, record)
        if not original:
            # a staged row does not show which fields its redacted values are in
            return "its text is left out, because it may contain redacted values"
        return redaction.text(text, [record.record, kept(original)])

    def _of_letter(self, shipment: Shipment, record: StagedRecord) -> bytes:
        letter = letter_at(shipment.decision, record.source, record.ordinal)
        try:
            return next(self._context.archive.records(letter.part, [letter.line], original=True))[1]
        except ConduitError:
            return b""

    def _of_source(self, shipment: Shipment, record: StagedRecord) -> bytes:
        plan, decision = shipment.plan, shipment.decision
        step, source, ordinal = plan.step, record.source, record.ordinal
        if changed_source(self._pipeline, plan, self._context.state) or not self._restaged.gives_same(shipment):
            return b""
        # the clock of the step's tasks: a source derives the same values from the time
        self._pipeline.begin_step(plan.clock_ns)
        known, last, reader = self._open.get(source, (-1, -1, None))
        if reader is None or known != step or ordinal <= last:
            reader = Originals(partial(self._blocks, plan, decision, source), 0)
        self._open[source] = (step, ordinal, reader)
        try:
            found = reader.of([ordinal])[0]
        except (ConduitError, OSError, StopIteration):
            del self._open[source]
            return b""
        # a record at another position is not the original of the staged one
        return keep(found) if str(found.position) == str(record.record.position) else b""

    def _blocks(self, plan: Plan, decision: Decision, source: str) -> Iterator[Block]:
        node, span = self._pipeline.source_node(source), span_of(plan, source)
        node.source.verify(span.start, span.end)
        tasks = from_rows(decision.splits)
        for split in (one.split for task in tasks for one in task if one.source == source):
            yield from read_blocks(
                node.node, node.source, self._pipeline.clock, node.source.relocate(split), ReadOptions()
            )
