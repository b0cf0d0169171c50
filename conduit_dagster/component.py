"""The Dagster component for a folder of pipelines: ``dg scaffold defs conduit_dagster.PipelinesComponent NAME``."""

from __future__ import annotations

from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import Field

from conduit_dagster.assets.translator import PipelineAsset, PipelineTranslator
from conduit_dagster.cli.init import write_project
from conduit_dagster.definitions import load_pipelines


class PipelinesScaffolder(dg.Scaffolder[Any]):
    """Writes ``defs.yaml``, and beside it a project with a first pipeline that runs."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the files; those that are there already stay as they are."""
        dg.scaffold_component(request, {"path": "."})
        if not request.append:
            write_project(request.target_path)


def _variables(data: PipelineAsset) -> dict[str, Any]:
    return {"pipeline": data.pipeline, "connector": data.connector, "role": data.role}


_PATH = "Folder with conduit.yaml or pipelines/, relative to the component's own."
_STRICT = "Whether a broken pipeline file keeps the code location from being loaded; otherwise an asset stands for it."
_TRANSLATION = (
    "Attributes of the assets, with the variables spec (the asset by default), pipeline, connector and role: "
    'key_prefix: ingest, group_name: "{{ pipeline.id }}_raw".'
)


@dg.scaffold_with(PipelinesScaffolder)
class PipelinesComponent(dg.Component, dg.Model, dg.Resolvable):
    """Pipelines of a folder, as assets, jobs, schedules and sensors. A code location has room for one."""

    path: str = Field(default=".", description=_PATH)
    strict: bool = Field(default=False, description=_STRICT)
    translation: Annotated[
        TranslationFn[PipelineAsset] | None,
        TranslationFnResolver[PipelineAsset](_variables),
    ] = Field(default=None, description=_TRANSLATION)

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        """Return the spec of one asset, as a translator does: to be overridden in a subclass."""
        return data.spec if self.translation is None else self.translation(data.spec, data)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the folder's pipelines."""
        return load_pipelines(context.path / self.path, translator=_Translator(self), strict=self.strict)


class _Translator(PipelineTranslator):
    def __init__(self, component: PipelinesComponent) -> None:
        self._component = component

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        return self._component.get_asset_spec(data)
