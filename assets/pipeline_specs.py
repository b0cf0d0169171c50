"""Asset specs of one pipeline: sources, destinations, dead letters and acks, after translation."""

from dataclasses import dataclass
from typing import Any

import dagster as dg

from conduit_dagster.assets.freshness import freshness_policy
from conduit_dagster.assets.links import Links
from conduit_dagster.assets.names import (
    ACKS,
    REPLAYED,
    asset_key,
    code_references,
    job_name,
    kind,
    replayed_key,
    short,
)
from conduit_dagster.assets.translator import AssetKeys, PipelineAsset, PipelineTranslator, Role, translated
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import ConnectorConfig
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.sdk import Dataset
from conduit_dagster.secret_values import hide

_OWNERS = ["team:conduit"]


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
        node = self._bound.compiled.consumers()[destination.id]
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
        return spec.replace_attributes(freshness_policy=freshness_policy(self._config))

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
