"""The destinations that have no copy of a nacked record, as the index keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable

PIECES = "~pieces"
"""Stands among them for: a processor had split the record, and another piece of it failed as well or went on."""
NOBODY = "~nobody"
"""Stands for: every destination of the file has the record by now, so that a replay has nothing to send."""


def encode_missed(destinations: Iterable[str]) -> str:
    """Their ids; none at all stands for every destination, whatever the file says by then."""
    names = list(destinations)
    return json.dumps(names) if names else ""


def decode_missed(text: str) -> tuple[str, ...]:
    """The ids behind :func:`encode_missed`."""
    return tuple(json.loads(text)) if text else ()
