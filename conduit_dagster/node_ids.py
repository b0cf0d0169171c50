"""Ids of nodes: connectors and processors, as errors, nacks, metrics and metadata name them."""

from __future__ import annotations

import hashlib

LONGEST_INPUT = 256
"""Maximum length of an input's id in the state store."""


def node_id(parent: str, name: str) -> str:
    """Return the id of a connector or processor, prefixed with the id of its pipeline or connector."""
    return f"{parent}:{name}"


def input_id(name: str, kind: str) -> str:
    """Return the id of an input that is made of connectors: ``name``, or a digest of it if that is too long.

    No connector's id has an ``@``.
    """
    return name if len(name) <= LONGEST_INPUT else f"{kind}@{hashlib.sha256(name.encode()).hexdigest()[:32]}"
