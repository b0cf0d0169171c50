"""Promises of a plugin's class: they end where a class outside this package overrides the methods that keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_OURS = "conduit_dagster."


def withdraw(cls: type[Any], base: type[Any], promises: Sequence[str], methods: Sequence[str]) -> None:
    """Give a class the promises of ``base``, which are safe for any code, in place of those of a built-in.

    Only if it, or another class outside this package, overrides one of the methods that keep them; a promise made in
    such a class stays.
    """
    for name in promises:
        if not keeps(cls, name, methods) and _giver(cls, name) is not base:
            setattr(cls, name, vars(base)[name])


def keeps(cls: type[Any], promise: str, methods: Sequence[str]) -> bool:
    """Return whether a promise still holds: it was made outside this package, or its methods are all from within."""
    return not _is_ours(_giver(cls, promise)) or all(_is_ours(_giver(cls, name)) for name in methods)


def is_built_in(cls: type[Any]) -> bool:
    """Return whether a class is one of this package."""
    return _is_ours(cls)


def _giver(cls: type[Any], name: str) -> type[Any] | None:
    return next((one for one in cls.__mro__ if name in vars(one)), None)


def _is_ours(giver: type[Any] | None) -> bool:
    return giver is None or giver.__module__.startswith(_OURS)
