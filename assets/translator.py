"""Translation of pipelines into assets of an existing Dagster project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import dagster as dg

from conduit_dagster.assets.names import REPLAYED, asset_key, replayed_key
from conduit_dagster.config.pipeline import ConnectorConfig, Pipeline
from conduit_dagster.recovery.errors import FatalError

Role = Literal["source", "destination", "dead_letters", "replayed_dead_letters", "acks"]


@dataclass(frozen=True)
class PipelineAsset:
    """An asset of a pipeline, before its translation."""

    pipeline: Pipeline
    """The pipeline as its file defines it."""
    role: Role
    connector: ConnectorConfig | None
    """The source or destination; None for the other roles."""
    spec: dg.AssetSpec
    """The default spec: key, dependencies, group, owners, tags, kinds, description and metadata."""


class PipelineTranslator:
    """How pipelines become assets. Override :meth:`get_asset_spec`, as in dagster-dlt and dagster-sling.

    ::

        class Ours(PipelineTranslator):
            def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
                spec = super().get_asset_spec(data)
                return spec.replace_attributes(key=spec.key.with_prefix("ingest"), owners=["team:data"])
    """

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        """Return the spec of one asset; ``data.spec`` by default.

        May change everything except partitions. Dependencies on other pipeline assets use their keys before the
        translation, and follow it. Called once per asset whenever the code location is loaded. An exception keeps only
        this pipeline from being loaded.
        """
        return data.spec


class AssetKeys:
    """Translated keys of one pipeline's assets, by the id of the connector, or the name of another asset."""

    def __init__(self, pipeline: str, keys: Mapping[str, dg.AssetKey] | None = None) -> None:
        """``keys``: those that differ from the default keys."""
        self.pipeline, self._keys = pipeline, keys or {}

    def of(self, name: str) -> dg.AssetKey:
        """Return the key of an asset."""
        return self._keys.get(name) or self._default(name)

    @property
    def moved(self) -> dict[dg.AssetKey, dg.AssetKey]:
        """Translated keys by their default keys, where these differ."""
        return {self._default(name): key for name, key in self._keys.items()}

    def _default(self, name: str) -> dg.AssetKey:
        return replayed_key(self.pipeline) if name == REPLAYED else asset_key(self.pipeline, name)


def translated(translator: PipelineTranslator, data: PipelineAsset) -> dg.AssetSpec:
    """Return the translated spec. Raises ``FatalError`` (``dagster.translator``) if the translator fails."""
    try:
        spec = translator.get_asset_spec(data)
        if not isinstance(spec, dg.AssetSpec):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's code
            raise TypeError(f"it returned {type(spec).__name__}, not an AssetSpec")
        if spec.partitions_def is not None:
            raise TypeError("an asset of a pipeline has no partitions")
    except Exception as error:
        raise FatalError(
            f"{type(translator).__name__}.get_asset_spec failed for {data.spec.key.to_user_string()}: {error}",
            code="dagster.translator",
            fix="correct that method",
        ) from error
    # a run that is cancelled or fails yields no outputs; Dagster would add its own, without numbers
    return spec if spec.skippable else spec.replace_attributes(skippable=True)


def followed(specs: Iterable[dg.AssetSpec], moved: Mapping[dg.AssetKey, dg.AssetKey]) -> Iterator[dg.AssetSpec]:
    """Yield the specs with their dependencies on ``moved`` keys, which translation has changed."""
    for spec in specs:
        deps = [
            dg.AssetDep(moved.get(dep.asset_key, dep.asset_key), partition_mapping=dep.partition_mapping)
            for dep in spec.deps
        ]
        yield spec.replace_attributes(deps=deps) if any(dep.asset_key in moved for dep in spec.deps) else spec
