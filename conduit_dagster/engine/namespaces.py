"""Which namespaces a step's records have, and where each of them ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from conduit_dagster.record import Record, mode_of
from conduit_dagster.state.steps import Namespaces, Seen


class Tracker:
    """Keeps the last record of each namespace. Records that share their metadata cost one look."""

    def __init__(self, seen: dict[str, Seen]) -> None:
        self._seen = seen

    def see(self, records: list[Record], ordinal: int, origins: Sequence[int]) -> None:
        """Takes a block in, as it left the source's processors; ``ordinal`` is the block's place in the range."""
        places = {id(record.metadata): place for place, record in enumerate(records)}
        for place in sorted(places.values()):
            record = records[place]
            self._seen[record.collection] = Seen(ordinal + origins[place], mode_of(record))


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
