"""The built-in processors. The modules here are the catalogue: ``field_set.py`` is ``field.set``."""

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
_NO_PLUGINS: Final = frozenset(
    {
        "avro",
        "base",
        "documents",
        "in_place",
        "modules",
        "registry",
        "remembering",
        "settings",
        "spark_sql",
        "unwrapping",
    }
)


@functools.cache
def names() -> tuple[str, ...]:
    """The names of all built-in processors, in order. Imports none of them."""
    modules = (module.name for module in pkgutil.iter_modules(processors.__path__))
    return tuple(sorted(module.replace("_", ".") for module in modules if module not in _NO_PLUGINS))


def builtin() -> dict[str, type[Processor]]:
    """All built-in processors by name. Imports them all; :func:`find` imports one."""
    return {name: _load(name) for name in names()}


def find(name: str, extra: Mapping[str, type[Processor]]) -> type[Processor] | None:
    """The processor of a pipeline file's ``plugin``: one of ``extra``, or a built-in, or ``None``.

    A built-in may be written as in Conduit: ``field.set``, ``builtin:field.set``,
    ``builtin:field.set@v0.1.0``. The version is not looked at.
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
