"""The Dagster component for a folder of pipelines: ``dg scaffold defs conduit_dagster.PipelinesComponent NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import Field

from conduit_dagster.assets.translator import PipelineAsset, PipelineTranslator
from conduit_dagster.cli.init import write_project
from conduit_dagster.config.project import COMPONENT_FILE, Project
from conduit_dagster.definitions import load_pipelines
from conduit_dagster.recovery.errors import FatalError


class PipelinesScaffolder(dg.Scaffolder[Any]):
    """Writes ``defs.yaml``, and beside it a project with a first pipeline that runs."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the files; existing ones are kept."""
        dg.scaffold_component(request, {"path": "."})
        if not request.append:
            write_project(request.target_path)


def _variables(data: PipelineAsset) -> dict[str, Any]:
    return {"pipeline": data.pipeline, "connector": data.connector, "role": data.role}


_CONNECTOR: dict[str, Any] = {
    "type": "object",
    "required": ["id", "type", "plugin"],
    "properties": {"id": {"type": "string"}, "type": {"enum": ["source", "destination"]}, "plugin": {"type": "string"}},
}
_OUTLINE: dict[str, Any] = {
    # Dagster would accept a string as well, and would then report the line of the attribute instead of that of the
    # mistake
    "anyOf": [{}],
    "type": "array",
    "items": {
        "type": "object",
        "required": ["id", "connectors"],
        "properties": {"id": {"type": "string"}, "connectors": {"type": "array", "items": _CONNECTOR}},
    },
}
"""Outline of pipelines, for ``dg check yaml`` and editors; ``dg check defs`` checks all of them."""


def _unresolved(_context: dg.ResolutionContext, pipelines: Any) -> Any:
    """Leave double braces alone: in a pipeline they are Go's templates, evaluated for each record."""
    return pipelines


_PIPELINES = (
    "Pipelines, written as in a pipeline file; path must be the component's own folder then. Double braces are not "
    "Dagster's there but templates of records; ${VARIABLE} is replaced from the environment."
)
_PATH = "Folder with conduit.yaml or pipelines/, relative to the component's own."
_STRICT = "Whether a broken pipeline file keeps the code location from loading; otherwise an asset represents it."
_TRANSLATION = (
    "Attributes of the assets, with the variables spec (the asset by default), pipeline, connector and role: "
    'key_prefix: ingest, group_name: "{{ pipeline.id }}_raw".'
)


@dg.scaffold_with(PipelinesScaffolder)
class PipelinesComponent(dg.Component, dg.Model, dg.Resolvable):
    """Pipelines of a folder, or of ``defs.yaml`` itself, as assets, jobs, schedules and sensors.

    A code location has room for one.
    """

    path: str = Field(default=".", description=_PATH)
    pipelines: Annotated[
        Sequence[Any],
        dg.Resolver(_unresolved, model_field_type=list[Any], inject_before_resolve=False, json_schema_extra=_OUTLINE),
    ] = Field(default=(), description=_PIPELINES)
    strict: bool = Field(default=False, description=_STRICT)
    translation: Annotated[
        TranslationFn[PipelineAsset] | None,
        TranslationFnResolver[PipelineAsset](_variables),
    ] = Field(default=None, description=_TRANSLATION)

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        """Return the spec of one asset, like a translator. Override it in a subclass."""
        return data.spec if self.translation is None else self.translation(data.spec, data)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the folder's pipelines."""
        folder = context.path / self.path
        if self.pipelines:
            _require_own_folder(folder, context.path)
        return load_pipelines(folder, translator=_Translator(self), strict=self.strict)


def _require_own_folder(folder: Path, component: Path) -> None:
    """Raise unless the component's folder is the project: commands and restarted runs read ``defs.yaml`` there."""
    root = Project.find(folder).root
    if root.resolve() != component.resolve():
        raise FatalError(
            f"pipelines are written in {component / COMPONENT_FILE}, but the project is {root}",
            code="config.elsewhere",
            place=str(component / COMPONENT_FILE),
            fix="leave path out and put conduit.yaml beside defs.yaml, or move the pipelines to a file in the project",
        )


class _Translator(PipelineTranslator):
    def __init__(self, component: PipelinesComponent) -> None:
        self._component = component

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        return self._component.get_asset_spec(data)
