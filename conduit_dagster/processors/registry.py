"""The built-in processors. The files beside this one are the catalogue: ``field_set.py`` is ``field.set``."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Final

from conduit_dagster import processors
from conduit_dagster.sdk import Processor

_PREFIX: Final = "builtin:"


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all built-in processors, sorted. Imports none of them."""
    files = pkgutil.iter_modules(processors.__path__)
    return tuple(sorted(file.name.replace("_", ".") for file in files if not file.ispkg and file.name != "registry"))


def builtin() -> dict[str, type[Processor]]:
    """Return all built-in processors by name. Imports them all; :func:`find` imports only one."""
    return {name: _load(name) for name in names()}


def find(name: str, extra: Mapping[str, type[Processor]]) -> type[Processor] | None:
    """Return the processor for a pipeline file's ``plugin``: one of ``extra``, a built-in, or ``None`` if unknown.

    A built-in may be written as in Conduit: ``field.set``, ``builtin:field.set``,
    ``builtin:field.set@v0.1.0``. The version is ignored.
    """
    if name in extra:
        return extra[name]
    plain = name.removeprefix(_PREFIX).partition("@")[0]
    return _load(plain) if plain in names() else None


@functools.cache
def _load(name: str) -> type[Processor]:
    module = importlib.import_module(f"{processors.__name__}.{name.replace('.', '_')}")
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, Processor) and kind.__module__ == module.__name__ and kind.__dict__.get("name") == name:
            return kind
    raise TypeError(f"{module.__name__} defines no processor named {name!r}")
