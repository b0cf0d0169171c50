"""Which entries of a closed segment stay (reference 4, CASES C15, C16): a pure decision over columns.

The offset log needs no compaction: its table holds one row per consumer and namespace by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from conduit_dagster.commit_log.entries import Batch
from conduit_dagster.state.offsets import EVERYTHING
from conduit_dagster.state.schema import LONGEST


def anything_handled(consumers: Sequence[str], offsets: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether every consumer has acknowledged something: else nothing is compacted. Without consumers nothing is."""
    return bool(consumers) and all(offsets.get(consumer) for consumer in consumers)


def highest_handled(consumers: Iterable[str], offsets: Mapping[str, Mapping[str, int]]) -> int:
    """An offset above which no entry of any namespace is handled by all consumers."""
    return min((max(offsets.get(consumer, {}).values(), default=-1) for consumer in consumers), default=-1)


def handled_upto(namespace: str, consumers: Iterable[str], offsets: Mapping[str, Mapping[str, int]]) -> int:
    """The offset up to which all consumers have handled the namespace; -1 where one of them has handled nothing of it.

    A consumer's own offset for the namespace counts, where it is known, else the one of all that the source has.
    """
    return min((_handled(namespace, offsets.get(consumer, {})) for consumer in consumers), default=-1)


def _handled(namespace: str, offsets: Mapping[str, int]) -> int:
    known = namespace if namespace in offsets and len(namespace) < LONGEST else EVERYTHING
    return offsets.get(known, -1)


class Retention:
    """The entries of one segment that stay: what a consumer still needs, and the last entry of each namespace."""

    def __init__(self, consumers: Sequence[str], offsets: Mapping[str, Mapping[str, int]]) -> None:
        self._consumers = consumers
        self._offsets = offsets
        self._upto: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._needed = 0

    def see(self, batch: Batch) -> None:
        """The first pass: every block of the segment, in order, before :meth:`stays` is asked."""
        entries, namespaces, codes = _columns(batch)
        self._needed += int(np.count_nonzero(entries > self._floors(namespaces)[codes]))
        present, back = np.unique(codes[::-1], return_index=True)
        for code, place in zip(present.tolist(), back.tolist(), strict=True):
            self._last[namespaces[code]] = int(entries[len(entries) - 1 - place])

    @property
    def count(self) -> int:
        """How many entries of those that were seen stay."""
        return self._needed + sum(last <= self._upto[namespace] for namespace, last in self._last.items())

    def stays(self, batch: Batch) -> Any:
        """A numpy mask: which entries of the block stay."""
        entries, namespaces, codes = _columns(batch)
        lasts = np.array([self._last.get(namespace, -1) for namespace in namespaces], np.int64)
        return (entries > self._floors(namespaces)[codes]) | (entries == lasts[codes])

    def _floors(self, namespaces: list[str]) -> Any:
        for namespace in namespaces:
            if namespace not in self._upto:
                self._upto[namespace] = handled_upto(namespace, self._consumers, self._offsets)
        return np.array([self._upto[namespace] for namespace in namespaces], np.int64)


def _columns(batch: Batch) -> tuple[Any, list[str], Any]:
    column = batch.column("namespace")
    return batch.column("offset").to_numpy(), column.dictionary.to_pylist(), column.indices.to_numpy()
