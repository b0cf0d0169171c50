"""Dagster definitions of one pipeline: external sources, one op for everything it writes, one job."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import dagster as dg

from conduit_dagster.assets.asset_checks import check_specs
from conduit_dagster.assets.dead_letter_jobs import define_letters
from conduit_dagster.assets.names import ACKS, asset_key, code_references, job_name, kind, replayed_key, short
from conduit_dagster.assets.run_op import RunConfig, run_in_dagster
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import ConnectorConfig
from conduit_dagster.connectors.pipeline.source import PipelineSource
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.resources.spark_resource import SparkResource, StateResource

Links = dict[tuple[str, str], list[dg.AssetKey]]


def find_links(pipelines: Iterable[BoundPipeline]) -> Links:
    """Return the assets upstream of each source, by pipeline and source.

    Links are chains by the plugin ``pipeline``, and files that one pipeline reads and another one owns. A link that
    would close a cycle is left out: Dagster rejects the whole code location for one.
    """
    pipelines = list(pipelines)
    found: Links = defaultdict(list)
    upstream: dict[str, set[str]] = defaultdict(set)
    for reader, source, other, connector in _chained(pipelines):
        upstream[reader].add(other)
        found[reader, source].append(asset_key(other, connector))
    for reader, source, path in _read(pipelines):
        for writer, consumer, thing in _written_by(pipelines):
            if _is_in(thing, path) and not _reaches(upstream, writer, reader):
                upstream[reader].add(writer)
                found[reader, source].append(asset_key(writer, consumer))
    return found


def _chained(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str, str]]:
    """Yield each source that reads another pipeline's connector. Validation has ruled out cycles of such chains."""
    known = {bound.id for bound in pipelines}
    for bound in pipelines:
        for node in bound.compiled.sources:
            if isinstance(node.source, PipelineSource) and node.source.reads[0] in known:
                yield bound.id, node.id, *node.source.reads


def _read(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str]]:
    for bound in pipelines:
        for node in bound.compiled.sources:
            path = node.source.unit.get("path")
            if isinstance(path, str) and path.startswith("/"):
                yield bound.id, node.id, os.path.realpath(path)


def _written_by(pipelines: Iterable[BoundPipeline]) -> Iterator[tuple[str, str, str]]:
    for bound in pipelines:
        for name, destination in bound.compiled.consumers().items():
            if destination.owned is not None:
                yield bound.id, name, destination.owned


def _is_in(thing: str, path: str) -> bool:
    """Return whether the file written is the one read, lies in the folder read, or matches the glob read.

    A folder of parts may be read by a glob too.
    """
    folder, name = Path(path).parent, Path(path).name
    in_folder = str(Path(thing).parent) == path or (str(folder) == thing and "*" in name)
    return thing == path or in_folder or fnmatch(thing, path)


def _reaches(upstream: dict[str, set[str]], start: str, goal: str) -> bool:
    """Return whether ``goal`` is ``start`` or upstream of it."""
    return start == goal or any(_reaches(upstream, nearer, goal) for nearer in upstream[start])


_OWNERS = ["team:conduit"]


@dataclass(frozen=True)
class PipelineDefinitions:
    """Dagster definitions of one pipeline."""

    sources: list[dg.AssetSpec]
    written: list[dg.AssetsDefinition]
    job: Any
    """An asset job, resolved when the code location is loaded."""
    more_jobs: list[Any]
    """Jobs for its dead letters."""


def define_pipeline(bound: BoundPipeline, parsed: ParsedPipeline, links: Links) -> PipelineDefinitions:
    """Return the definitions of a pipeline. Raises what Dagster raises for names it rejects."""
    specs = _Specs(bound, parsed, links)
    written = _written(bound, list(specs.written()))
    letters = define_letters(bound, specs.replayed())
    jobs = [letters.replay, letters.discard]
    return PipelineDefinitions(list(specs.sources()), [written, letters.replayed], _job(bound, written), jobs)


def _job(bound: BoundPipeline, written: dg.AssetsDefinition) -> Any:
    return dg.define_asset_job(
        job_name(bound.id),
        selection=dg.AssetSelection.assets(*written.keys),
        description=_about(bound),
        # Dagster's own retries would start a run twice: the recovery sensor starts it too
        tags={"conduit/pipeline": short(bound.id), "dagster/max_retries": "0"},
        metadata={"conduit/pipeline": bound.id},
        executor_def=dg.in_process_executor,
    )


def _about(bound: BoundPipeline) -> str:
    config = bound.config
    trigger = config.trigger.cron or (
        f"every {config.trigger.every:g}s" if config.trigger.every else config.trigger.kind
    )
    facts = f"Delivery: {config.delivery.strategy}. Trigger: {trigger}. The file says: {config.status}."
    return f"{config.description}\n\n{facts}".strip()


def _written(bound: BoundPipeline, specs: list[dg.AssetSpec]) -> dg.AssetsDefinition:
    pipeline, file = bound.id, bound.file

    @dg.multi_asset(
        name=f"{job_name(pipeline)}__run",
        specs=specs,
        check_specs=check_specs(pipeline),
        can_subset=False,
        op_tags={"conduit/pipeline": short(pipeline)},
    )
    def run(
        context: dg.AssetExecutionContext, config: RunConfig, spark: SparkResource, state: StateResource
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        yield from run_in_dagster(context, config, pipeline, file, state.project, spark.spark_session, state.database)

    return run


class _Specs:
    """Asset specs of a pipeline, each with its place in the pipeline's file."""

    def __init__(self, bound: BoundPipeline, parsed: ParsedPipeline, links: Links) -> None:
        self._bound, self._parsed, self._links = bound, parsed, links
        self._config = bound.config

    def sources(self) -> Iterator[dg.AssetSpec]:
        for source in self._config.sources:
            yield self._connector(source, self._links.get((self._bound.id, source.id), []), {kind(source.plugin)})

    def written(self) -> Iterator[dg.AssetSpec]:
        sources = [self._key(source.id) for source in self._config.sources]
        destinations = [self._key(destination.id) for destination in self._config.destinations]
        for destination in self._config.destinations:
            yield self._connector(destination, sources, {kind(destination.plugin), "spark"})
        yield self._dead_letters(destinations)
        # acked only after every destination and the dead-letter queue are durable
        yield self._acks([*destinations, self._key(DEAD_LETTERS)])

    def _key(self, name: str) -> dg.AssetKey:
        return asset_key(self._bound.id, name)

    def _connector(self, connector: ConnectorConfig, deps: list[dg.AssetKey], kinds: set[str]) -> dg.AssetSpec:
        named = f" ({connector.name})" if connector.name != connector.id else ""
        text = f"{connector.type.capitalize()} of pipeline {self._bound.id}{named}: {connector.plugin}."
        return self._spec(connector.id, connector.where, deps, kinds, text, connector.plugin)

    def _dead_letters(self, deps: list[dg.AssetKey]) -> dg.AssetSpec:
        queue = self._config.dead_letter_queue
        if queue.window_size:
            limit = f"of {queue.window_size} records at most {queue.window_nack_threshold} may be nacked"
        else:
            limit = "any number of records may be nacked"
        text = f"Records of pipeline {self._bound.id} that were nacked; {limit}. Written by {queue.plugin}."
        kinds = {kind(queue.plugin), "spark"}
        return self._spec(DEAD_LETTERS, "/dead-letter-queue", deps, kinds, text, queue.plugin)

    def replayed(self) -> dg.AssetSpec:
        """Return the spec of the asset for replayed dead letters."""
        key = replayed_key(self._bound.id)
        text = f"Dead letters of pipeline {self._bound.id} that were sent through it again, and where they went."
        spec = self._spec(DEAD_LETTERS, "/dead-letter-queue", [self._key(DEAD_LETTERS)], {"spark"}, text, None)
        return spec.replace_attributes(key=key)

    def _acks(self, deps: list[dg.AssetKey]) -> dg.AssetSpec:
        text = f"How far the sources of pipeline {self._bound.id} are acked: up to there everything is handled."
        return self._spec(ACKS, "", deps, {"checkpoint"}, text, None)

    def _spec(
        self, name: str, where: str, deps: list[dg.AssetKey], kinds: set[str], text: str, plugin: str | None
    ) -> dg.AssetSpec:
        return dg.AssetSpec(
            self._key(name),
            deps=deps,
            # a run that is cancelled or fails yields no outputs; Dagster would add one of its own, without numbers
            skippable=True,
            kinds=kinds,
            group_name=job_name(self._bound.id),
            owners=_OWNERS,
            tags={"conduit/pipeline": short(self._bound.id)},
            description=text,
            metadata=self._metadata(name, where, plugin),
        )

    def _metadata(self, name: str, where: str, plugin: str | None) -> dict[str, Any]:
        line, _ = self._parsed.locate(where)
        raw = {"conduit/pipeline": self._bound.id, "conduit/id": name, "conduit/plugin": plugin}
        written = {key: value for key, value in raw.items() if value is not None}
        return {**written, **code_references([(self._bound.file, line, "pipeline file")])}
