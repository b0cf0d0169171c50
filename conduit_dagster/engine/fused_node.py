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
    """Runs a chain of nodes record by record; what a code doesn't fit goes through the nodes themselves.

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
        block = _Block(self._nodes, records, origins, fate)
        return block.over_payloads(self._chain, records) if isinstance(records, Payloads) else block.over(self._chain)


class _Block:
    """One block on its way through the chain."""

    def __init__(
        self, nodes: Sequence[Step], records: list[Record], origins: Sequence[int], fate: NodeListener
    ) -> None:
        self._nodes, self._records, self._origins, self._fate = nodes, records, origins, fate
        self._gone: list[int] = []
        """Places of the records that don't continue."""

    def over(self, chain: PayloadChain) -> tuple[list[Record], Sequence[int]]:
        records, rest = self._records, iter(self._records)
        drop = partial(self._drop, rest)
        while (unfit := chain.over_records(rest, drop)) is not None:
            place = self._place(rest)
            self._handled(unfit, place, records[place])
        return (without(records, self._gone) if self._gone else records), self._origins_on()

    def over_payloads(self, chain: PayloadChain, block: Payloads) -> tuple[list[Record], Sequence[int]]:
        rest, changed = iter(block.payloads), list[Any]()
        drop = partial(self._drop, rest)
        while (unfit := chain.over_payloads(rest, drop, changed.append)) is not None:
            place = self._place(rest)
            record = block.at(place, unfit.after)
            if self._handled(unfit, place, record):
                changed.append(record.after)
        return cast("list[Record]", block.changed(changed, self._gone)), self._origins_on()

    def _place(self, rest: Iterator[object]) -> int:
        return len(self._records) - length_hint(rest) - 1

    def _drop(self, rest: Iterator[object], code: int) -> None:
        place = self._place(rest)
        self._gone.append(place)
        self._fate.filtered(self._nodes[code].node, self._origins[place])

    def _handled(self, unfit: Unfit, place: int, record: Record) -> bool:
        """Pass a record through the nodes from the one it doesn't fit; return whether it continues."""
        records, origins = [record], self._origins[place : place + 1]
        for node in self._nodes[unfit.code :]:
            records, origins = node.run(records, origins, self._fate)
            if not records:
                self._gone.append(place)
                return False
        return True

    def _origins_on(self) -> Sequence[int]:
        return without(self._origins, self._gone) if self._gone else self._origins


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
