"""Lineage between pipelines: which assets are upstream of a source."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import dagster as dg

from conduit_dagster.assets.names import ACKS, asset_key
from conduit_dagster.connectors.pipeline.source import PipelineSource
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.validation.owner_rules import is_read_with, path_of

Links = dict[tuple[str, str], list[dg.AssetKey]]


def find_links(pipelines: Iterable[BoundPipeline]) -> Links:
    """Return the assets upstream of each source, by pipeline and source, and those upstream of the acks.

    No run writes a source. So that a run of both pipelines takes them in order, the reader's acks are downstream of the
    other one's. Links are chains by the plugin ``pipeline``, and files that one pipeline reads and another one owns. A
    link that would close a cycle is left out, because Dagster would reject the whole code location.
    """
    pipelines = list(pipelines)
    found: Links = defaultdict(list)
    upstream: dict[str, set[str]] = defaultdict(set)
    for reader, source, other, connector in _chained(pipelines):
        _link(found, (reader, source), (other, connector))
        upstream[reader].add(other)
    written = list(_written_by(pipelines))
    for reader, source, path in _read(pipelines):
        for writer, consumer, thing in written:
            if is_read_with(thing, path) and not _reaches(upstream, writer, reader):
                _link(found, (reader, source), (writer, consumer))
                upstream[reader].add(writer)
    return found


def _link(found: Links, source: tuple[str, str], read: tuple[str, str]) -> None:
    """``source``: a pipeline and its source; ``read``: the other pipeline, and what is read of it."""
    found[source].append(asset_key(*read))
    acks, others = found[source[0], ACKS], asset_key(read[0], ACKS)
    if others not in acks:
        acks.append(others)


def _chained(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str, str]]:
    """Yield each source that reads another pipeline's connector. Validation has excluded cycles of these."""
    known = {bound.id for bound in pipelines}
    for bound in pipelines:
        for node in bound.compiled.sources:
            if isinstance(node.source, PipelineSource) and node.source.reads[0] in known:
                yield bound.id, node.id, *node.source.reads


def _read(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str]]:
    for bound in pipelines:
        for node in bound.compiled.sources:
            if (path := path_of(node.source)) is not None:
                yield bound.id, node.id, path


def _written_by(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str]]:
    for bound in pipelines:
        for name, destination in bound.compiled.consumers().items():
            if destination.owned is not None:
                yield bound.id, name, destination.owned


def _reaches(upstream: dict[str, set[str]], start: str, goal: str) -> bool:
    """Return whether ``goal`` is ``start`` or upstream of it."""
    return start == goal or any(_reaches(upstream, nearer, goal) for nearer in upstream[start])
