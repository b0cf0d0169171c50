"""Has msgspec look at types in good time."""

from __future__ import annotations

import msgspec


def learn(*types: type[msgspec.Struct]) -> None:
    """Called where a module defines what is decoded in several threads: while it is imported, one thread looks.

    msgspec (0.22) ends the process where two threads decode a type for the first time at the same moment.
    """
    for one in types:
        msgspec.json.Decoder(one)
