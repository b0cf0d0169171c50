"""Consecutive processors as one loop over a block, where each has code for the usual payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from operator import length_hint
from typing import Any, cast

from conduit_dagster.engine.nodes import NodeListener, Step
from conduit_dagster.lazy_records import without
from conduit_dagster.payload_code import PayloadChain, PayloadCode, Unfit
from conduit_dagster.record import Nack, Record
from conduit_dagster.sdk import Payloads


class FusedNode:
    """Runs a chain of nodes record by record; what a code doesn't fit goes through its node.

    The result is that of the nodes one after the other: each of them handles one record at a time.
    """

    def __init__(self, nodes: Sequence[Step], codes: Sequence[PayloadCode]) -> None:
        """``codes``: those of the nodes."""
        self._nodes, self._chain = nodes, PayloadChain(codes)

    def run(
        self, records: list[Record], origins: Sequence[int], listener: NodeListener
    ) -> tuple[list[Record], Sequence[int]]:
        """Process a block, like :meth:`Node.run`."""
        block = _Block(self._nodes, self._chain, origins, listener)
        on = block.payloads(records) if isinstance(records, Payloads) else block.records(records)
        return on, block.origins_on()


_ENOUGH = 64
"""Number of records of a block after which, if most of them fit no code, the nodes take the rest: each of them is
faster with many records than with one.
"""


class _Block:
    """One block on its way through the chain."""

    def __init__(
        self, nodes: Sequence[Step], chain: PayloadChain, origins: Sequence[int], listener: NodeListener
    ) -> None:
        self._nodes, self._chain, self._origins, self._listener = nodes, chain, origins, _Places(listener, origins)
        self._unfit = 0
        self._gone: list[int] = []
        """Places of the records that don't continue."""

    def records(self, records: list[Record]) -> list[Record]:
        rest, made = iter(records), list(records)
        drop = partial(self._dropped, rest)
        while (unfit := self._chain.over_records(rest, drop)) is not None:
            place = self._place(rest)
            if (on := self._handled(unfit, place, records[place])) is not None:
                made[place] = on
            if self._is_enough(place):
                for later, record in self._rest(records[place + 1 :], place + 1):
                    made[later] = record
                break
        return without(made, self._gone) if self._gone else made

    def payloads(self, block: Payloads) -> list[Record]:
        rest, changed = iter(block.payloads), list[Any]()
        drop = partial(self._dropped, rest)
        while (unfit := self._chain.over_payloads(rest, drop, changed.append)) is not None:
            place = self._place(rest)
            if (on := self._handled(unfit, place, block.at(place, unfit.after))) is not None:
                changed.append(on.after)
            if self._is_enough(place):
                later = [block.at(at, block.payloads[at]) for at in range(place + 1, len(block))]
                changed += [on.after for _, on in self._rest(later, place + 1)]
                break
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
        self._listener.filtered(self._nodes[code].node, place)

    def _handled(self, unfit: Unfit, place: int, record: Record) -> Record | None:
        """Pass a record through the node whose code it doesn't fit, and on; return it if it continues."""
        self._unfit += 1
        code, dropped = unfit.code, list[int]()
        while True:
            on, _ = self._nodes[code].run([record], (place,), self._listener)
            if not on:
                self._gone.append(place)
                return None
            first = code + 1
            unfit_again = self._chain.behind(code).over_records(iter(on), dropped.append)
            if dropped:
                self._drop(place, first + dropped[0])
                return None
            record = on[0]
            if unfit_again is None:
                return record
            code = first + unfit_again.code

    def _is_enough(self, place: int) -> bool:
        return self._unfit >= _ENOUGH and 2 * self._unfit > place

    def _rest(self, records: list[Record], first: int) -> Iterator[tuple[int, Record]]:
        """Pass the last records, from a place on, through one node after the other; return those that continue."""
        taken = range(first, first + len(records))
        places: Sequence[int] = taken
        for node in self._nodes:
            if records:
                records, places = node.run(records, places, self._listener)
        self._gone += sorted(set(taken).difference(places))
        return zip(places, records, strict=True)


class _Places:
    """Listener that passes the events on with the origins of the places that it is told."""

    def __init__(self, listener: NodeListener, origins: Sequence[int]) -> None:
        self._listener, self._origins = listener, origins

    def filtered(self, node: str, origin: int) -> None:
        self._listener.filtered(node, self._origins[origin])

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        self._listener.nacked(node, self._origins[origin], nack, record)


@lru_cache(maxsize=64)
def fused(steps: tuple[Step, ...]) -> Sequence[Step | FusedNode]:
    """Return the steps with every run of nodes that have code replaced by one. Made once per worker and pipeline."""
    made: list[Step | FusedNode] = []
    for has_code, run in groupby(((step, step.payload_code) for step in steps), key=lambda pair: pair[1] is not None):
        pairs = list(run)
        nodes, codes = [step for step, _ in pairs], [code for _, code in pairs if code is not None]
        made += [FusedNode(nodes, codes)] if has_code else nodes
    return made
