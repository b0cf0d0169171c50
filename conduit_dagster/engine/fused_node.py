"""Consecutive processors as one loop over a block, where each has code for the usual payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from operator import length_hint
from typing import Any, cast

from conduit_dagster.engine.nodes import NodeListener, Step
from conduit_dagster.lazy_records import without
from conduit_dagster.payload_code import PayloadChain, Unfit
from conduit_dagster.record import Record
from conduit_dagster.sdk import Payloads


class FusedNode:
    """Runs a chain of nodes record by record; what a code doesn't fit goes through its node.

    The result is that of the nodes one after the other: each of them handles one record at a time.
    """

    def __init__(self, nodes: Sequence[Step]) -> None:
        """``nodes``: each with a ``payload_code``."""
        self._nodes = nodes
        self._chain = PayloadChain([node.payload_code for node in nodes if node.payload_code is not None])

    def run(
        self, records: list[Record], origins: Sequence[int], fate: NodeListener
    ) -> tuple[list[Record], Sequence[int]]:
        """Process a block, like :meth:`Node.run`."""
        block = _Block(self._nodes, self._chain, origins, fate)
        on = block.payloads(records) if isinstance(records, Payloads) else block.records(records)
        return on, block.origins_on()


class _Block:
    """One block on its way through the chain."""

    def __init__(self, nodes: Sequence[Step], chain: PayloadChain, origins: Sequence[int], fate: NodeListener) -> None:
        self._nodes, self._chain, self._origins, self._fate = nodes, chain, origins, fate
        self._gone: list[int] = []
        """Places of the records that don't continue."""

    def records(self, records: list[Record]) -> list[Record]:
        rest = iter(records)
        drop = partial(self._dropped, rest)
        while (unfit := self._chain.over_records(rest, drop)) is not None:
            place = self._place(rest)
            self._handle(unfit, place, records[place])
        return without(records, self._gone) if self._gone else records

    def payloads(self, block: Payloads) -> list[Record]:
        rest, changed = iter(block.payloads), list[Any]()
        drop = partial(self._dropped, rest)
        while (unfit := self._chain.over_payloads(rest, drop, changed.append)) is not None:
            place = self._place(rest)
            record = block.at(place, unfit.after)
            if self._handle(unfit, place, record):
                changed.append(record.after)
        return cast("list[Record]", block.changed(changed, self._gone))

    def origins_on(self) -> Sequence[int]:
        return without(self._origins, self._gone) if self._gone else self._origins

    def _place(self, rest: Iterator[object]) -> int:
        """Return the place of the last record taken."""
        return len(self._origins) - length_hint(rest) - 1

    def _dropped(self, rest: Iterator[object], code: int) -> None:
        self._drop(self._place(rest), code)

    def _drop(self, place: int, code: int) -> None:
        self._gone.append(place)
        self._fate.filtered(self._nodes[code].node, self._origins[place])

    def _handle(self, unfit: Unfit, place: int, record: Record) -> bool:
        """Pass a record through the node whose code it doesn't fit, and on; return whether it continues."""
        code, dropped = unfit.code, list[int]()
        while True:
            on, _ = self._nodes[code].run([record], self._origins[place : place + 1], self._fate)
            if not on:
                self._gone.append(place)
                return False
            first = code + 1
            next_unfit = self._chain.behind(code).over_records(iter(on), dropped.append)
            if dropped:
                self._drop(place, first + dropped[0])
                return False
            if next_unfit is None:
                return True
            code = first + next_unfit.code


@lru_cache(maxsize=64)
def fused(steps: tuple[Step, ...]) -> Sequence[Step | FusedNode]:
    """Return the steps with every run of nodes that have code replaced by one. Made once per worker and pipeline."""
    made: list[Step | FusedNode] = []
    for has_code, run in groupby(steps, key=_has_code):
        if has_code:
            made.append(FusedNode(list(run)))
        else:
            made.extend(run)
    return made


def _has_code(step: Step) -> bool:
    return step.payload_code is not None
