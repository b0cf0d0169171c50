"""Asset specs of pipelines: sources, destinations, dead letters and acks, what is upstream of each, when it is late."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dagster as dg

from conduit_dagster.assets.names import ACKS, REPLAYED, asset_key, code_references, job_name, kind, replayed_key, short
from conduit_dagster.assets.translator import AssetKeys, PipelineAsset, PipelineTranslator, Role, translated
from conduit_dagster.config.delivery import TIMED, longest_gap
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import ConnectorConfig, Pipeline
from conduit_dagster.connectors.pipeline.source import PipelineSource
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.validation.cross_pipeline_rules import is_read_with, path_of
from conduit_dagster.sdk import Dataset
from conduit_dagster.secret_values import hide

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
        for name, destination in bound.compiled.consumers.items():
            if (owned := destination.owned) is not None:
                yield bound.id, name, owned


def _reaches(upstream: dict[str, set[str]], start: str, goal: str) -> bool:
    """Return whether ``goal`` is ``start`` or upstream of it."""
    # each pipeline once: the paths between them are too many to follow
    seen, left = {start}, [start]
    while left:
        found = upstream[left.pop()] - seen
        seen |= found
        left += found
    return goal in seen


_OWNERS = ["team:conduit"]
_LEAST_WINDOW = timedelta(minutes=1)
"""Dagster's shortest freshness window."""
_WINDOWS_APART = timedelta(seconds=1)
"""Minimum difference between the two windows: Dagster refuses equal ones."""


@dataclass(frozen=True)
class PipelineSpecs:
    """Translated specs of one pipeline's assets."""

    bound: BoundPipeline
    sources: list[dg.AssetSpec]
    written: list[dg.AssetSpec]
    """Destinations, dead letters and acks."""
    replayed: dg.AssetSpec
    keys: AssetKeys


def specify_pipeline(
    bound: BoundPipeline, parsed: ParsedPipeline, links: Links, translator: PipelineTranslator
) -> PipelineSpecs:
    """Return a pipeline's specs, whose dependencies still have the untranslated keys.

    Raises ``FatalError`` (``dagster.translator``), and Dagster's error for names it rejects.
    """
    specs, keys = _Specs(bound, parsed, links), dict[str, dg.AssetKey]()

    def translate(role: Role, name: str, connector: ConnectorConfig | None, spec: dg.AssetSpec) -> dg.AssetSpec:
        result = translated(translator, PipelineAsset(bound.config, role, connector, spec))
        if result.key != spec.key:
            keys[name] = result.key
        return result

    sources = [translate("source", one.id, one, specs.source(one)) for one in bound.config.sources]
    written = [translate("destination", one.id, one, specs.destination(one)) for one in bound.config.destinations]
    written.append(translate("dead_letters", DEAD_LETTERS, None, specs.dead_letters()))
    written.append(translate("acks", ACKS, None, specs.acks()))
    replayed = translate("replayed_dead_letters", REPLAYED, None, specs.replayed())
    return PipelineSpecs(bound, sources, written, replayed, AssetKeys(bound.id, keys))


class _Specs:
    """Asset specs of a pipeline, each with its place in the pipeline's file."""

    def __init__(self, bound: BoundPipeline, parsed: ParsedPipeline, links: Links) -> None:
        self._bound, self._parsed, self._links = bound, parsed, links
        self._config = bound.config

    def source(self, source: ConnectorConfig) -> dg.AssetSpec:
        """Return the spec of a source, downstream of the assets that write it."""
        links = self._links.get((self._bound.id, source.id), [])
        nodes = self._bound.compiled.sources
        dataset = next((node.source.dataset for node in nodes if node.id == source.id), None)
        return self._connector(source, links, {kind(source.plugin)}, dataset)

    def destination(self, destination: ConnectorConfig) -> dg.AssetSpec:
        """Return the spec of a destination, downstream of every source."""
        sources = [self._key(source.id) for source in self._config.sources]
        node = self._bound.compiled.consumers[destination.id]
        spec = self._connector(destination, sources, {kind(destination.plugin), "spark"}, node.dataset)
        columns = [dg.TableColumn(name, kind_) for name, kind_ in node.declared_columns]
        schema = {"dagster/column_schema": dg.TableSchema(columns)} if columns else {}
        return spec.merge_attributes(metadata=schema)

    @property
    def _destinations(self) -> list[dg.AssetKey]:
        return [self._key(destination.id) for destination in self._config.destinations]

    def _key(self, name: str) -> dg.AssetKey:
        return asset_key(self._bound.id, name)

    def _connector(
        self, connector: ConnectorConfig, deps: list[dg.AssetKey], kinds: set[str], dataset: Dataset | None
    ) -> dg.AssetSpec:
        named = f" ({connector.name})" if connector.name != connector.id else ""
        text = f"{connector.type.capitalize()} of pipeline {self._bound.id}{named}: {connector.plugin}."
        spec = self._spec(connector.id, connector.where, deps, kinds, text, connector.plugin)
        return spec if dataset is None else spec.merge_attributes(metadata=_known(dataset))

    def dead_letters(self) -> dg.AssetSpec:
        """Return the spec of the dead letters."""
        queue = self._config.dead_letter_queue
        if queue.window_size:
            limit = f"of {queue.window_size} records at most {queue.window_nack_threshold} may be nacked"
        else:
            limit = "any number of records may be nacked"
        text = f"Records of pipeline {self._bound.id} that were nacked; {limit}. Written by {queue.plugin}."
        kinds = {kind(queue.plugin), "spark"}
        return self._spec(DEAD_LETTERS, "/dead-letter-queue", self._destinations, kinds, text, queue.plugin)

    def replayed(self) -> dg.AssetSpec:
        """Return the spec of the asset for replayed dead letters."""
        key = replayed_key(self._bound.id)
        text = f"Dead letters of pipeline {self._bound.id} that were sent through it again, and where they went."
        spec = self._spec(DEAD_LETTERS, "/dead-letter-queue", [self._key(DEAD_LETTERS)], {"spark"}, text, None)
        return spec.replace_attributes(key=key)

    def acks(self) -> dg.AssetSpec:
        """Return the spec of the acks."""
        # acked only after every destination and the dead-letter queue are durable
        deps = [*self._destinations, self._key(DEAD_LETTERS), *self._links.get((self._bound.id, ACKS), [])]
        text = f"How far the sources of pipeline {self._bound.id} are acked: up to there everything is handled."
        spec = self._spec(ACKS, "", deps, {"checkpoint"}, text, None)
        return spec.replace_attributes(freshness_policy=_freshness_policy(self._config))

    def _spec(
        self, name: str, where: str, deps: list[dg.AssetKey], kinds: set[str], text: str, plugin: str | None
    ) -> dg.AssetSpec:
        return dg.AssetSpec(
            self._key(name),
            deps=deps,
            # a run that is cancelled or fails yields no outputs; Dagster would add its own, without numbers
            skippable=True,
            kinds=kinds,
            group_name=job_name(self._bound.id),
            owners=self._config.owners or _OWNERS,
            tags={"conduit/pipeline": short(self._bound.id)},
            description=hide(text),
            metadata=self._metadata(name, where, plugin),
        )

    def _metadata(self, name: str, where: str, plugin: str | None) -> dict[str, Any]:
        line, _ = self._parsed.locate(where)
        raw = {"conduit/pipeline": self._bound.id, "conduit/id": name, "conduit/plugin": plugin}
        written = {key: value for key, value in raw.items() if value is not None}
        return {**written, **code_references([(self._bound.file, line, "pipeline file")])}


def _known(dataset: Dataset) -> dict[str, str]:
    """Return the metadata that Dagster and its integrations use: a table has the same name in all code locations."""
    table = {"dagster/table_name": dataset.name} if dataset.is_table else {}
    return {"dagster/uri": dataset.uri, **table}


def _freshness_policy(config: Pipeline) -> dg.FreshnessPolicy | None:
    """Return the policy of a pipeline's acks; None if no setting defines when they are late.

    Every successful run of a timed pipeline materialises them. They are late once two runs in a row should have ended
    and have not; with ``delivery.max-lag``, once that has passed since a run should have begun. A continuous pipeline
    has a policy with ``max-lag`` only: see ``run_reporter.Heartbeat``. Dagster evaluates policies if
    ``freshness.enabled`` is set in ``dagster.yaml``.
    """
    trigger, lag = config.trigger, config.delivery.max_lag
    max_lag = None if lag is None else timedelta(seconds=lag)
    if trigger.kind in TIMED:
        return _timed(max(longest_gap(trigger), _LEAST_WINDOW), max_lag)
    return None if max_lag is None or trigger.kind != "continuous" else _continuous(max_lag)


def _timed(longest: timedelta, max_lag: timedelta | None) -> dg.FreshnessPolicy:
    """``longest``: longest time between two runs."""
    if max_lag is None:
        return dg.FreshnessPolicy.time_window(fail_window=2 * longest, warn_window=longest + longest / 2)
    return dg.FreshnessPolicy.time_window(fail_window=longest + max(max_lag, _WINDOWS_APART), warn_window=longest)


def _continuous(max_lag: timedelta) -> dg.FreshnessPolicy:
    """For ``max_lag`` up to half a minute both windows would be Dagster's shortest: then it only fails."""
    fail, warn = max(2 * max_lag, _LEAST_WINDOW), max(max_lag, _LEAST_WINDOW)
    return dg.FreshnessPolicy.time_window(fail_window=fail, warn_window=warn if fail - warn >= _WINDOWS_APART else None)
