"""Conformance suites, the rules for every plugin as tests: derive from one of the classes in a test module.

    from conduit_dagster.testing.conformance import ProcessorConformance, plugin_module

    class TestClean(ProcessorConformance):
        processor = plugin_module("clean", __file__).Clean  # of plugins/clean.py
        settings = {"field": ".Payload.After.name"}

All built-in plugins pass them. They need pytest, and no Spark.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from conduit_dagster.engine.plugin_loading import load_plugins, read_plugins
from conduit_dagster.engine.plugin_results import set_up
from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import ConnectorContext, Destination, Source
from conduit_dagster.testing.conformance.destinations import DestinationConformance
from conduit_dagster.testing.conformance.processors import ProcessorConformance, odd_records
from conduit_dagster.testing.conformance.sources import SourceConformance

__all__ = [
    "DestinationConformance",
    "ProcessorConformance",
    "SourceConformance",
    "create_connector",
    "odd_records",
    "plugin_module",
]

Connector = TypeVar("Connector", Source, Destination)


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


def create_connector(kind: type[Connector], settings: Mapping[str, Any], root: str | Path) -> Connector:
    """Create the connector ``x`` of a pipeline ``p``, in a project at ``root``: paths in settings are relative to it.

    A destination gets the strongest strategy that it supports. Raises pydantic's ``ValidationError`` for bad settings.
    """
    strongest = issubclass(kind, Destination) and "exactly-once" in kind.strategies
    context = ConnectorContext("p", "x", str(root), Clock(), "exactly-once" if strongest else "at-least-once")
    return set_up(kind, settings, context)
