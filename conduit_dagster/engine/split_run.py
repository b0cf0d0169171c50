"""Processing of one split's blocks: through the processors, to every destination's writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from conduit_dagster.engine.dead_letters.letter_layout import NOBODY, clean, said
from conduit_dagster.engine.dead_letters.split_letters import BlockNacks, Nacked, SplitContext, SplitLetters
from conduit_dagster.engine.fused_node import FusedNode, fused
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.open_work import Branch, route_of
from conduit_dagster.engine.origins import BlockPositions, NamespaceTracker, TracedWriter
from conduit_dagster.engine.plugin_results import refused_by_writer
from conduit_dagster.engine.stage_job import Ledger, NackRow, NackRows
from conduit_dagster.record import Nack, Record, copy
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.sdk import Block, Keys, Payloads, Replayed, Writer
from conduit_dagster.state.steps import SourceCount


class SplitRun:
    """Runner of one split's blocks, and listener for every record that does not reach every destination."""

    def __init__(self, split: SplitContext, writers: dict[str, Writer], ledger: Ledger, letters: SplitLetters) -> None:
        pipeline, source_node, begin = split.pipeline, split.source_node, split.begin
        self._pipeline, self._source_node, self._writers, self._ledger = pipeline, source_node, writers, ledger
        self._letters, self._ordinal = letters, split.ordinal
        self._own_steps, self._steps = fused(tuple(source_node.nodes)), fused(tuple(pipeline.nodes))
        self._begin = begin
        self._before: Callable[[], Any] = lambda: begin
        self._block = Block([], lambda i: None)
        self._positions = BlockPositions(self._block, are_read=True)
        self._nacks = BlockNacks(self._block)
        self._rank = 0
        self._count = ledger.sources.setdefault(source_node.id, SourceCount())
        self._filtered = ledger.filtered
        self._seen = NamespaceTracker(ledger.namespaces.setdefault(source_node.id, {}))
        program = pipeline.program
        # the nack window has already counted a dead letter that fails again
        self._cuts = program.window_size > 0 and not source_node.is_replay
        self._rows = NackRows(program.window_size if self._cuts else 0, program.window_threshold)
        outputs = enumerate(pipeline.outputs, 1)
        self._branches = _ordered(Branch(i, o, o.nodes) for i, o in outputs if source_node.only in ("", o.id))

    @property
    def ordinal(self) -> int:
        """Number of records in the step's range of its source before the next one."""
        return self._ordinal

    def boundary(self) -> Any:
        """Return the boundary after the last record taken. Used only if the source fails: it may cost a read."""
        records = self._block.records
        return self._block.boundary(len(records) - 1) if records else self._begin

    def block(self, block: Block) -> None:
        """Run one block through the whole pipeline."""
        records = block.records
        self._pipeline.idempotency.source = self._source_node.id
        self._block, self._nacks, self._rank = block, BlockNacks(block), 0
        self._positions = BlockPositions(block, self._pipeline.reads_keys >= Keys.POSITIONS)
        total, origins = len(records), range(len(records))
        if block.nacks:
            records, origins = self._without_nacked(block)
        if block.replayed is None:
            records, origins = self._through(self._own_steps, records, origins)
            self._seen.see(records, self._ordinal, origins)
            records, origins = self._through(self._steps, records, origins)
        else:
            records, origins = self._again(block.replayed, records, origins)
        nacked = len(self._nacks)
        self._nacks.went_on(self._rank, origins)
        gone = total - nacked - _distinct(origins, self._nacks)
        self._fan_out(records, origins)
        self._count.read += total
        self._count.filtered += gone
        self._count.nacked += len(self._nacks)
        if self._nacks:
            self._letters.take(block, self._nacks, self._ordinal)
            self._report_nacks()
        self._ordinal += total
        if self._cuts:
            self._before = partial(block.boundary, total - 1)

    def _through(
        self, nodes: Sequence[Step | FusedNode], records: list[Record], origins: Sequence[int]
    ) -> tuple[list[Record], Sequence[int]]:
        for node in nodes:
            records, origins = node.run(records, origins, self)
        return records, origins

    def _again(
        self, replayed: Replayed, records: list[Record], origins: Sequence[int]
    ) -> tuple[list[Record], Sequence[int]]:
        """Run dead letters through their remaining nodes; those that fail again stay dead letters."""
        if NOBODY in replayed.missed:
            return [], []  # closed together with the others
        route = route_of(self._pipeline, self._source_node, replayed)
        if isinstance(route, Nack):
            for record, origin in zip(records, origins, strict=True):
                self._nacks.add(origin, 0, replayed.node, route, record, stands=True)
            return [], []
        self._branches = _ordered(route.branches)
        return self._through(route.nodes, records, origins)

    def _without_nacked(self, block: Block) -> tuple[list[Record], Sequence[int]]:
        """Nack, in their place, the records that were nacked before they were logged; return the others."""
        for origin, (node, nack) in block.nacks.items():
            self._nacks.add(origin, 0, node, nack, block.records[origin], stands=block.replayed is not None)
        on = [origin for origin in range(len(block.records)) if origin not in block.nacks]
        return [block.records[origin] for origin in on], on

    def _fan_out(self, records: list[Record], origins: Sequence[int]) -> None:
        last = self._branches[-1].rank
        for branch in self._branches:
            if records:
                self._rank = branch.rank
                own = branch.destination_node.needs_own_records and branch.rank != last
                self._branch(branch, _copies(records) if own else records, origins)

    def _branch(self, branch: Branch, records: list[Record], origins: Sequence[int]) -> None:
        records, origins = self._through(fused(tuple(branch.nodes)), records, origins)
        self._nacks.went_on(self._rank, origins)
        destination_node = branch.destination_node
        if not records:
            return
        if isinstance(records, Payloads) and not destination_node.destination.takes_payloads:
            records = records.all()
        if destination_node.destination.changes_records:
            for record in records:
                record.metadata = dict(record.metadata)
        if destination_node.destination.prints and self._pipeline.redaction:
            records = list(map(self._pipeline.redaction.record, records))
        writer = self._writers[destination_node.id]
        if isinstance(writer, TracedWriter):
            writer.block(self._positions)
        writer.place(self._source_node.id, self._ordinal, origins)
        given = blamed(destination_node.node, writer.write, records)
        refused = refused_by_writer(destination_node.node, given, len(records))
        for place, nack in refused.items():
            self.nacked(destination_node.node, origins[place], nack, records[place])
        if refused:
            self._nacks.went_on(self._rank, [origin for place, origin in enumerate(origins) if place not in refused])

    def filtered(self, node: str, origin: int) -> None:
        """Count a dropped record."""
        if node in self._pipeline.stateful:
            self._nacks.dropped(self._rank, origin)
        self._filtered[node] = self._filtered.get(node, 0) + 1

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        """Add a nack. One source record makes at most one: that of the first node in file order (DELIVERY.md)."""
        self._nacks.add(origin, self._rank, node, nack, record)

    def _report_nacks(self) -> None:
        for place, nacked in self._nacks:
            reason = f"{nacked.node} {nacked.nack.code}"
            self._ledger.nacked[reason] = self._ledger.nacked.get(reason, 0) + 1
            # the window has already counted records nacked earlier
            counts = not (self._cuts and self._letters.is_known(self._block, place))
            if counts and self._rows.wants(self._ordinal + place):
                self._ledger.nacks.append(self._row(place, nacked))

    def _row(self, place: int, nacked: Nacked) -> NackRow:
        before = None
        if self._cuts:
            before = self._block.boundary(place - 1) if place else self._before()
        by_destination = nacked.rank > 0 and nacked.node == self._pipeline.outputs[nacked.rank - 1].node
        position, code, message = clean(str(nacked.record.position)), nacked.nack.code, said(nacked.nack)
        return NackRow(
            self._source_node.id, self._ordinal + place, position, nacked.node, code, message, by_destination, before
        )


def _ordered(branches: Iterable[Branch]) -> list[Branch]:
    """Return the branches, those that change records last: the last branch may use the originals."""
    return sorted(branches, key=lambda branch: branch.destination_node.needs_own_records)


def _copies(records: list[Record]) -> list[Record]:
    return cast("list[Record]", records.copied()) if isinstance(records, Payloads) else list(map(copy, records))


def _distinct(origins: Sequence[int], nacked: BlockNacks) -> int:
    """Return how many source records continue without also being nacked (one may be split into several)."""
    if isinstance(origins, range) and not nacked:
        return len(origins)
    return len(set(origins)) - len(nacked.among(origins))
