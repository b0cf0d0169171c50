"""Which namespaces a step's records have, and where each of them ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_

from conduit_dagster.record import Record, mode_of
from conduit_dagster.sdk import Rows
from conduit_dagster.state.steps import Namespaces, Seen

_metadata_of = attrgetter("metadata")


class Tracker:
    """Keeps the last record of each namespace. Records that share their metadata cost one look."""

    def __init__(self, seen: dict[str, Seen]) -> None:
        self._seen = seen

    def see(self, records: list[Record], ordinal: int, origins: Sequence[int]) -> None:
        """Takes a block in, as it left the source's processors; ``ordinal`` is the block's place in the range."""
        if not records:
            return
        if isinstance(records, Rows):
            self._seen[records.like.collection] = Seen(ordinal + origins[-1], mode_of(records.like))
            return
        for place in _ends(list(map(_metadata_of, records))):
            record = records[place]
            self._seen[record.collection] = Seen(ordinal + origins[place], mode_of(record))


def _ends(metadata: list[dict[str, str]]) -> list[int]:
    """Where each run of the same object ends."""
    last = len(metadata) - 1
    if all(map(is_, metadata, repeat(metadata[last]))):
        return [last]
    return [place for place, one in enumerate(metadata) if place == last or metadata[place + 1] is not one]


def merged(parts: Iterable[Mapping[str, Mapping[str, Seen]]]) -> Namespaces:
    """Of several tasks: the last one of each namespace."""
    total: Namespaces = {}
    for part in parts:
        for source, namespaces in part.items():
            known = total.setdefault(source, {})
            for namespace, seen in namespaces.items():
                if namespace not in known or known[namespace].ordinal < seen.ordinal:
                    known[namespace] = seen
    return total
