"""The delivery hash: the name of one step for one consumer (reference 5, and DELIVERY.md, Units)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import rfc8785

_EXACT = 2**53 - 1


def delivery_hash(
    *,
    kind: Literal["data", "dlq"],
    pipeline: str,
    destination: str,
    sources: Sequence[dict[str, Any]],
    skip: int = 0,
    take: int | None = None,
) -> str:
    """Compute the SHA-256 over canonical JSON (RFC 8785), in hex.

    It contains no attempt, epoch, run, time, setting, processor, partitioning or batch limit: the same range of the
    same source gives the same hash. ``sources`` are objects of ``source, generation, start, end``; ``skip`` and
    ``take`` select a child of a delivery, a null ``take`` the whole delivery.
    """
    name = {
        "version": 1,
        "kind": kind,
        "pipeline": pipeline,
        "destination": destination,
        "sources": list(sources),
        "skip": skip,
        "take": take,
    }
    return hashlib.sha256(rfc8785.dumps(_exact(name))).hexdigest()


def _exact(value: Any) -> Any:
    """Replace integers beyond 2^53 (an inode, for example), which canonical JSON lacks, by their decimal text."""
    if isinstance(value, dict):
        return {str(k): _exact(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(v) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value
