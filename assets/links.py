"""Which pipeline reads what another one writes or logs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import dagster as dg

from assets.names import asset_key
from conduit_dagster.connectors.pipeline.source import PipelineSource
from conduit_dagster.engine.planner import BoundPipeline

Links = dict[tuple[str, str], list[dg.AssetKey]]


def find_links(pipelines: Iterable[BoundPipeline]) -> Links:
    """The assets upstream of each source, by pipeline and source.

    Chains by the plugin ``pipeline`` are seen, and files that one names and the other owns. A link that would close a
    circle is left out: Dagster refuses the whole code location for one.
    """
    pipelines = list(pipelines)
    found: Links = defaultdict(list)
    upstream: dict[str, set[str]] = defaultdict(set)
    for reader, source, other, connector in _chained(pipelines):
        upstream[reader].add(other)
        found[reader, source].append(asset_key(other, connector))
    for reader, source, path in _read(pipelines):
        for writer, consumer, thing in _written(pipelines):
            if _is_in(thing, path) and not _reaches(upstream, writer, reader):
                upstream[reader].add(writer)
                found[reader, source].append(asset_key(writer, consumer))
    return found


def _chained(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str, str]]:
    """Each source that reads another pipeline, and its connector. Validation has found that no chain is a circle."""
    known = {bound.id for bound in pipelines}
    for bound in pipelines:
        for inlet in bound.compiled.sources:
            if isinstance(inlet.source, PipelineSource) and inlet.source.reads[0] in known:
                yield bound.id, inlet.id, *inlet.source.reads


def _read(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str]]:
    for bound in pipelines:
        for inlet in bound.compiled.sources:
            path = inlet.source.unit.get("path")
            if isinstance(path, str) and path.startswith("/"):
                yield bound.id, inlet.id, os.path.realpath(path)


def _written(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str]]:
    for bound in pipelines:
        for name, destination in bound.compiled.consumers().items():
            if destination.owned is not None:
                yield bound.id, name, destination.owned


def _is_in(thing: str, path: str) -> bool:
    """Whether what is written is what is read, lies in the folder that is read, or matches its glob.

    A folder of parts may be read by a glob too.
    """
    folder, name = Path(path).parent, Path(path).name
    in_folder = str(Path(thing).parent) == path or (str(folder) == thing and "*" in name)
    return thing == path or in_folder or fnmatch(thing, path)


def _reaches(upstream: dict[str, set[str]], start: str, goal: str) -> bool:
    """Whether ``goal`` is ``start`` or upstream of it."""
    return start == goal or any(_reaches(upstream, nearer, goal) for nearer in upstream[start])
