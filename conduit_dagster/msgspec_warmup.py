"""Early registration of types with msgspec."""

from __future__ import annotations

import msgspec


def learn(*types: type[msgspec.Struct]) -> None:
    """Register types that several threads decode.

    Call it in the module that defines them, since only one thread imports a module: msgspec (0.22) crashes the process
    if two threads decode a type for the first time at the same moment.
    """
    for one in types:
        msgspec.json.Decoder(one)
