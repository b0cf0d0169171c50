"""Namespaces of a step's records, and the last record of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_

from conduit_dagster.record import Record, mode_of
from conduit_dagster.sdk import Rows
from conduit_dagster.state.steps import LastInNamespace, Namespaces

_metadata_of = attrgetter("metadata")


class Tracker:
    """Tracker of the last record of each namespace. A run of records that share their metadata costs one look-up."""

    def __init__(self, seen: dict[str, LastInNamespace]) -> None:
        self._seen = seen

    def see(self, records: list[Record], ordinal: int, origins: Sequence[int]) -> None:
        """Register a block as it left the source's processors; ``ordinal`` is the block's place in the range."""
        if not records:
            return
        if isinstance(records, Rows):
            self._seen[records.like.collection] = LastInNamespace(ordinal + origins[-1], mode_of(records.like))
            return
        for place in _ends(list(map(_metadata_of, records))):
            record = records[place]
            self._seen[record.collection] = LastInNamespace(ordinal + origins[place], mode_of(record))


def namespaces_of(records: Sequence[Record]) -> str | list[str]:
    """Return the namespace of each record, as one name if all have the same; at least one record."""
    if _is_shared(list(map(_metadata_of, records))):
        return records[0].collection
    named = [record.collection for record in records]
    return named[0] if len(set(named)) == 1 else named


def _is_shared(metadata: list[dict[str, str]]) -> bool:
    return all(map(is_, metadata, repeat(metadata[0])))


def _ends(metadata: list[dict[str, str]]) -> list[int]:
    """Return the end of each run of the same object."""
    last = len(metadata) - 1
    if _is_shared(metadata):
        return [last]
    return [place for place, one in enumerate(metadata) if place == last or metadata[place + 1] is not one]


def merged(parts: Iterable[Mapping[str, Mapping[str, LastInNamespace]]]) -> Namespaces:
    """Merge the namespaces of several tasks: the last record of each namespace."""
    total: Namespaces = {}
    for part in parts:
        for source, namespaces in part.items():
            known = total.setdefault(source, {})
            for namespace, seen in namespaces.items():
                if namespace not in known or known[namespace].ordinal < seen.ordinal:
                    known[namespace] = seen
    return total
