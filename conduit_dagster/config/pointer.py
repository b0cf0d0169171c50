"""JSON pointers (RFC 6901): how a finding names its place in the configuration."""

from __future__ import annotations

from collections.abc import Iterable


def child(pointer: str, key: str | int) -> str:
    """The pointer to a member of what ``pointer`` points at."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def join(pointer: str, keys: Iterable[str | int]) -> str:
    """The pointer to a descendant."""
    for key in keys:
        pointer = child(pointer, key)
    return pointer


def parent(pointer: str) -> str:
    """The pointer to what contains it; the root contains itself."""
    return pointer.rpartition("/")[0]


def within(pointer: str, ancestor: str) -> bool:
    """Whether a pointer is ``ancestor`` or below it."""
    return pointer == ancestor or pointer.startswith(ancestor + "/")
