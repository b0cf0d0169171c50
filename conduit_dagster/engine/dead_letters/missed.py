"""Destinations without a copy of a nacked record, as the index keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable

PIECES = "~pieces"
"""Marker in the list: a processor had split the record, and another piece of it failed as well or passed."""
NOBODY = "~nobody"
"""Marker: every destination of the file has the record by now, so a replay has nothing to send."""


def encode_missed(destinations: Iterable[str]) -> str:
    """Encode destination ids; an empty list stands for every destination that the file has at replay time."""
    names = list(destinations)
    return json.dumps(names) if names else ""


def decode_missed(text: str) -> tuple[str, ...]:
    """Decode the ids encoded by :func:`encode_missed`."""
    return tuple(json.loads(text)) if text else ()
