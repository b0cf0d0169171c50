"""The plugins of a project, for their tests."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

from conduit_dagster.engine.plugin_loading import load_plugins, read_plugins


def plugin_module(name: str, start: str | Path = ".") -> Any:
    """Load the classes of ``plugins/NAME.py`` in the nearest folder upwards of ``start``, as pipelines do.

    Raises ``LookupError`` if the file is missing or defines no plugin, and errors of loading it.
    """
    place = Path(start).absolute()
    root = next((folder for folder in (place, *place.parents) if (folder / "plugins" / f"{name}.py").is_file()), None)
    if root is None:
        raise LookupError(f"no folder upwards of {place} has a plugins/{name}.py")
    found = load_plugins({name: read_plugins(root)[name]}, installed=False)
    for error in found.errors:
        raise error
    kinds = [*found.sources.values(), *found.destinations.values(), *found.processors.values()]
    if not kinds:
        raise LookupError(f"{root}/plugins/{name}.py defines no plugin")
    return types.SimpleNamespace(**{kind.__name__: kind for kind in kinds})
