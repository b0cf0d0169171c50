"""Ids of nodes: connectors and processors, as errors, nacks, metrics and metadata name them."""

from __future__ import annotations


def node_id(parent: str, name: str) -> str:
    """Return the id of a connector or processor, prefixed with the id of its pipeline or connector."""
    return f"{parent}:{name}"
