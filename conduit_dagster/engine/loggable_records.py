"""Encoding of a source's records for the log: a record that the log can't hold is nacked, the others are unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from conduit_dagster.commit_log.entries import Batch, Nacks
from conduit_dagster.connectors.formats import nack_of
from conduit_dagster.engine.record_faults import loggable
from conduit_dagster.record import Nack, Record

EncodeBlock = Callable[..., Any]
"""Encodes ``records`` with their ``nacks``; raises if the log can't hold one of the records."""


def encode_loggable(encode: EncodeBlock, node: str, records: list[Record], nacks: Nacks) -> tuple[Batch, Nacks]:
    """Encode a block; return it with its nacks, to which ``node`` adds those of records that the log can't hold."""
    try:
        return encode(records=records, nacks=nacks), nacks
    except Exception:  # noqa: BLE001  # whatever a record holds is its own nack
        refused = dict(_refused(encode, records, 0))
    nacks = {**{place: (node, nack) for place, nack in refused.items()}, **nacks}
    shown = [loggable(record) if place in refused else record for place, record in enumerate(records)]
    return encode(records=shown, nacks=nacks), nacks


def _refused(encode: EncodeBlock, records: list[Record], first: int) -> Iterator[tuple[int, Nack]]:
    """Yield the records that the log can't hold, found by halves: the place, from ``first``, and the nack."""
    try:
        encode(records=records, nacks={})
    except Exception as error:  # noqa: BLE001  # as above
        if len(records) == 1:
            yield first, nack_of(error)
            return
        half = len(records) // 2
        yield from _refused(encode, records[:half], first)
        yield from _refused(encode, records[half:], first + half)
