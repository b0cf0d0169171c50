"""Lookup of connectors by their plugin name in a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from conduit_dagster.sdk import Destination, Source

# the testing kit is a layer above this one; it is imported only if a pipeline names it
_SOURCES = {
    "chaos": ("conduit_dagster.testing.chaos", "ChaosSource"),
    "file": ("conduit_dagster.connectors.file.source", "FileSource"),
    "generator": ("conduit_dagster.connectors.generator", "GeneratorSource"),
    "parquet": ("conduit_dagster.connectors.parquet.source", "ParquetSource"),
    "pipeline": ("conduit_dagster.connectors.pipeline.source", "PipelineSource"),
}
_DESTINATIONS = {
    "chaos": ("conduit_dagster.testing.chaos", "ChaosDestination"),
    "chaos.direct": ("conduit_dagster.testing.chaos", "ChaosDirectDestination"),
    "delta": ("conduit_dagster.connectors.delta.destination", "DeltaDestination"),
    "file": ("conduit_dagster.connectors.file.destination", "FileDestination"),
    "log": ("conduit_dagster.connectors.log", "LogDestination"),
    "parquet": ("conduit_dagster.connectors.parquet.destination", "ParquetDestination"),
    "postgres": ("conduit_dagster.connectors.postgres.destination", "PostgresDestination"),
}


_SPARK = "spark:"
"""Prefix of the plugin name of any Spark data source."""
_SPARK_SOURCE = ("conduit_dagster.connectors.spark.source", "SparkSource")
_SPARK_DESTINATION = ("conduit_dagster.connectors.spark.destination", "SparkDestination")


def plain_name(plugin: str) -> str:
    """Return the plugin name without prefix and version: ``file`` for ``builtin:file@v1.2`` as for ``file``.

    A plugin of the project keeps its own name.
    """
    return plugin.removeprefix("builtin:").partition("@")[0]


def is_builtin(plugin: str, name: str, extra: Mapping[str, object]) -> bool:
    """Return whether a plugin name means the built-in ``name``. Imports no plugin. ``extra``: the project's own."""
    return plain_name(plugin) == name and (plugin.startswith("builtin:") or name not in extra)


def source_names() -> list[str]:
    """Return the names of the built-in sources."""
    return sorted([*_SOURCES, f"{_SPARK}FORMAT"])


def destination_names() -> list[str]:
    """Return the names of the built-in destinations."""
    return sorted([*_DESTINATIONS, f"{_SPARK}FORMAT"])


def find_source(plugin: str, extra: Mapping[str, type[Source]]) -> type[Source] | None:
    """Return the source class of a plugin name, or None. ``extra``: the project's own, which take precedence."""
    name = plain_name(plugin)
    if name in extra and not plugin.startswith("builtin:"):
        return extra[name]
    if name.startswith(_SPARK):
        return _of_spark(_SPARK_SOURCE, name)
    return _load(_SOURCES[name]) if name in _SOURCES else None


def find_destination(plugin: str, extra: Mapping[str, type[Destination]]) -> type[Destination] | None:
    """Return the destination class of a plugin name, or None. ``extra``: the project's own, which take precedence."""
    name = plain_name(plugin)
    if name in extra and not plugin.startswith("builtin:"):
        return extra[name]
    if name.startswith(_SPARK):
        return _of_spark(_SPARK_DESTINATION, name)
    return _load(_DESTINATIONS[name]) if name in _DESTINATIONS else None


def _load(place: tuple[str, str]) -> type:
    module, name = place
    return getattr(import_module(module), name)


@cache
def _of_spark(place: tuple[str, str], name: str) -> type:
    """Return the connector class for one format, never None: only Spark knows which formats exist."""
    format_ = name.removeprefix(_SPARK)
    return type(place[1], (_load(place),), {"name": name, "format": format_, "__doc__": _load(place).__doc__})
