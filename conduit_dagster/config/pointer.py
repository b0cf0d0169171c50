"""JSON pointers (RFC 6901), which name the place of a finding in the configuration."""

from __future__ import annotations

from collections.abc import Iterable


def child(pointer: str, key: str | int) -> str:
    """Return the pointer to a member of the value at ``pointer``."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def join(pointer: str, keys: Iterable[str | int]) -> str:
    """Return the pointer to a descendant."""
    for key in keys:
        pointer = child(pointer, key)
    return pointer


def parent(pointer: str) -> str:
    """Return the pointer to the containing value; the root contains itself."""
    return pointer.rpartition("/")[0]


def within(pointer: str, ancestor: str) -> bool:
    """Return whether a pointer is ``ancestor`` or below it."""
    return pointer == ancestor or pointer.startswith(ancestor + "/")
