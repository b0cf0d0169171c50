"""Lookup of built-in plugins by file location, so that ``ls`` is the catalogue.

``connectors/file/source.py`` holds the source ``file``, ``processors/field_set.py`` the processor ``field.set``. A
built-in may be written as in Conduit: ``builtin:field.set``, ``builtin:field.set@v0.1.0``; its version is ignored. A
plugin of the project, or an installed one, takes precedence unless the name begins with ``builtin:``.

Some need an extra of the distribution (``extras.py``). They are listed without it too, but fail to load:
:meth:`BuiltinPlugins.find` returns None, and :meth:`BuiltinPlugins.not_installed` returns the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from conduit_dagster import connectors, processors
from conduit_dagster.extras import NotInstalledError, extra_of, not_installed
from conduit_dagster.sdk import Destination, Processor, Source

T = TypeVar("T")
_PREFIX: Final = "builtin:"
_SPARK: Final = "spark"


class BuiltinPlugins(Generic[T]):
    """The built-in plugins of one kind. ``part``: the module of a connector's package that holds the plugin."""

    def __init__(self, kind: type[T], place: Any, part: str = "") -> None:
        self._kind, self._place, self._part = kind, place, part
        self.noun: str = kind.__name__.lower()
        self.names: Callable[[], tuple[str, ...]] = cache(self._names)
        """Return all names, sorted, without importing the plugins. ``spark:FORMAT`` stands for all formats of Spark."""
        self._load: Callable[[str], type[T]] = cache(self._loaded)

    def find(self, plugin: str, extra: Mapping[str, type[T]]) -> type[T] | None:
        """Return the class for a pipeline file's ``plugin``; None if unknown or :meth:`not_installed`.

        ``extra``: plugins that are not built in.
        """
        try:
            return self._find(plugin, extra)
        except NotInstalledError:
            return None

    def not_installed(self, plugin: str, extra: Mapping[str, type[T]]) -> NotInstalledError | None:
        """Return the error for a known plugin whose extra is not installed; None for any other."""
        try:
            self._find(plugin, extra)
        except NotInstalledError as error:
            return error
        return None

    def all(self) -> dict[str, type[T]]:
        """Return all installed plugins by name. Imports every one; :meth:`find` imports only one."""
        found = {name: self.find(name, {}) for name in self.names()}
        return {name: kind for name, kind in found.items() if kind is not None}

    def _find(self, plugin: str, extra: Mapping[str, type[T]]) -> type[T] | None:
        name = plain_name(plugin)
        if not plugin.startswith(_PREFIX) and (own := extra.get(plugin) or extra.get(name)) is not None:
            return own
        listed = f"{_SPARK}:FORMAT" if name.startswith(f"{_SPARK}:") else name
        return self._load(name) if listed in self.names() else None

    def _names(self) -> tuple[str, ...]:
        found = [one.name for one in iter_modules(self._place.__path__) if self._is_plugin(one.name, one.ispkg)]
        return tuple(sorted(name.replace("_", ".") if name != _SPARK else f"{_SPARK}:FORMAT" for name in found))

    def _is_plugin(self, name: str, is_package: bool) -> bool:
        if not self._part or not is_package:
            return not self._part and not is_package
        folders = [f"{folder}/{name}" for folder in self._place.__path__]
        return any(module.name == self._part for module in iter_modules(folders))

    def _loaded(self, name: str) -> type[T]:
        plain, _, format_ = name.partition(":")
        kind = self._of(plain)
        if plain != _SPARK:
            return kind
        # only Spark knows which formats exist
        own: Any = type(kind.__name__, (kind,), {"name": name, "format": format_, "__doc__": kind.__doc__})
        return own

    def _of(self, name: str) -> type[T]:
        path = [self._place.__name__, name.replace(".", "_"), *([self._part] if self._part else [])]
        module = self._imported(".".join(path), name)
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if (
                issubclass(kind, self._kind)
                and kind.__module__ == module.__name__
                and kind.__dict__.get("name") == name
            ):
                return kind
        raise TypeError(f"{module.__name__} defines no plugin named {name!r}")

    def _imported(self, module: str, name: str) -> ModuleType:
        try:
            return import_module(module)
        except ImportError as error:
            extra = extra_of(module)
            if extra is None or (error.name or "").startswith("conduit_dagster"):
                raise
            raise not_installed(f"the {self.noun} {name}", extra, error) from error


SOURCES: Final = BuiltinPlugins(Source, connectors, "source")
DESTINATIONS: Final = BuiltinPlugins(Destination, connectors, "destination")
PROCESSORS: Final = BuiltinPlugins(Processor, processors)


def plain_name(plugin: str) -> str:
    """Return the plugin name without prefix and version: ``file`` for ``builtin:file@v1.2`` as for ``file``."""
    return plugin.removeprefix(_PREFIX).partition("@")[0]


def is_builtin(plugin: str, name: str, extra: Mapping[str, object]) -> bool:
    """Return whether a plugin name means the built-in ``name``; imports no plugin. ``extra``: plugins not built in."""
    return plain_name(plugin) == name and (plugin.startswith(_PREFIX) or name not in extra)
