"""The project's own processors and connectors: the ``*.py`` files of its ``plugins/`` folder."""

from __future__ import annotations

import hashlib
import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conduit_dagster.connectors.base import Destination, Source
from conduit_dagster.processors.base import Processor

_BASES = (Processor, Source, Destination)


class PluginError(Exception):
    """A plugin file that cannot be loaded; the message says which and why."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(message)
        self.file = file


@dataclass
class Plugins:
    """The classes that a project's plugin files define, by the name that pipeline files use."""

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


def load_plugins(texts: Mapping[str, str]) -> Plugins:
    """Runs each text as a module and collects the classes it defines; a broken one does not hide the others."""
    found = Plugins(texts=dict(texts))
    for name, text in texts.items():
        try:
            _collect(found, _module(name, text))
        except Exception as error:  # noqa: BLE001  # an author's module may raise anything while it is loaded
            found.errors.append(PluginError(f"plugins/{name}.py", f"{type(error).__name__}: {error}"))
    return found


def _module(name: str, text: str) -> types.ModuleType:
    # named after its text too: a changed plugin is another module, in a worker that outlives the change
    full = f"conduit_plugins.{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if full in sys.modules:
        return sys.modules[full]
    module = types.ModuleType(full)
    sys.modules[full] = module
    try:
        exec(compile(text, f"plugins/{name}.py", "exec"), module.__dict__)
    except BaseException:
        del sys.modules[full]
        raise
    return module


def _collect(found: Plugins, module: types.ModuleType) -> None:
    for value in vars(module).values():
        if not (inspect.isclass(value) and issubclass(value, _BASES) and value.__module__ == module.__name__):
            continue
        name = getattr(value, "name", "")
        if not name or inspect.isabstract(value):
            continue
        if issubclass(value, Processor):
            found.processors[name] = value
        elif issubclass(value, Source):
            found.sources[name] = value
        else:
            found.destinations[name] = value
