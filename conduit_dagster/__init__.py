"""Data pipelines with delivery guarantees: Conduit's semantics as Dagster assets on Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conduit_dagster.assets.translator import PipelineAsset, PipelineTranslator
    from conduit_dagster.component import PipelinesComponent
    from conduit_dagster.definitions import load_pipelines

__all__ = ["PipelineAsset", "PipelineTranslator", "PipelinesComponent", "load_pipelines"]

_HOMES = {
    "PipelineAsset": "conduit_dagster.assets.translator",
    "PipelineTranslator": "conduit_dagster.assets.translator",
    "PipelinesComponent": "conduit_dagster.component",
    "load_pipelines": "conduit_dagster.definitions",
}


def __getattr__(name: str) -> Any:
    """Import Dagster's entry points at their first use: the command line and Spark tasks must not import Dagster."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
