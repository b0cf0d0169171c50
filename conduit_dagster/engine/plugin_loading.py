"""Processors and connectors that are not built in: those of the project's ``plugins/`` folder, and installed ones.

A package offers its own by entry points of the group ``conduit_dagster.plugins``, each a class or a module with some.
It has to be installed wherever tasks run; the project's files travel there.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from conduit_dagster.processors.common.modules import module_of
from conduit_dagster.sdk import Destination, Processor, Source

_BASES = (Processor, Source, Destination)
GROUP = "conduit_dagster.plugins"
_PACKAGE = "conduit_plugins"


class PluginError(Exception):
    """A plugin file that cannot be loaded; the message says which and why."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(message)
        self.file = file


@dataclass
class Plugins:
    """The classes that are there, by the name that pipeline files use. The project's own win over installed ones."""

    sources: dict[str, type[Source]] = field(default_factory=dict[str, type[Source]])
    destinations: dict[str, type[Destination]] = field(default_factory=dict[str, type[Destination]])
    processors: dict[str, type[Processor]] = field(default_factory=dict[str, type[Processor]])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """Module name to source text: what tasks load instead of files."""
    errors: list[PluginError] = field(default_factory=list[PluginError])


def read_plugins(root: Path) -> dict[str, str]:
    """Module name to source text of every plugin file of the project."""
    folder = root / "plugins"
    files = sorted(folder.glob("*.py")) if folder.is_dir() else []
    return {path.stem: path.read_text(encoding="utf-8") for path in files if not path.name.startswith("_")}


def load_plugins(texts: Mapping[str, str], installed: bool = True) -> Plugins:
    """Run each text as a module and collect the classes it defines; a broken module does not hide the others.

    ``installed``: also what packages bring.
    """
    found = Plugins(texts=dict(texts))
    if installed:
        _add_installed(found)
    for name, text in texts.items():
        try:
            for kind in _kinds(module_of(_PACKAGE, name, text, f"plugins/{name}.py")):
                _add(found, kind)
        except Exception as error:  # noqa: BLE001  # an author's module may raise anything while it is loaded
            found.errors.append(PluginError(f"plugins/{name}.py", f"{type(error).__name__}: {error}"))
    return found


def is_of_project(kind: type[Any]) -> bool:
    """Return whether a plugin is shipped with the project, rather than built in or installed as a package."""
    return kind.__module__.startswith(f"{_PACKAGE}.")


def _add_installed(found: Plugins) -> None:
    for name, kinds in _installed():
        if isinstance(kinds, Exception):
            found.errors.append(PluginError(name, f"{type(kinds).__name__}: {kinds}"))
            continue
        for kind in kinds:
            _add(found, kind)


@cache
def _installed() -> list[tuple[str, list[type[Any]] | Exception]]:
    """Entry point by entry point; imported once per process."""
    found: list[tuple[str, list[type[Any]] | Exception]] = []
    for point in entry_points(group=GROUP):
        name = f"{point.dist.name if point.dist else 'a package'}: {point.name}"
        try:
            thing = point.load()
            found.append((name, [thing] if inspect.isclass(thing) else list(_kinds(thing))))
        except Exception as error:  # noqa: BLE001  # a package may raise anything while it is imported
            found.append((name, error))
    return found


def _kinds(module: types.ModuleType) -> Iterator[type[Any]]:
    """Return the plugins that a module defines itself."""
    for value in vars(module).values():
        own = inspect.isclass(value) and issubclass(value, _BASES) and value.__module__ == module.__name__
        if own and getattr(value, "name", "") and not inspect.isabstract(value):
            yield value


def _add(found: Plugins, kind: type[Any]) -> None:
    if issubclass(kind, Processor):
        found.processors[kind.name] = kind
    elif issubclass(kind, Source):
        found.sources[kind.name] = kind
    elif issubclass(kind, Destination):
        found.destinations[kind.name] = kind
