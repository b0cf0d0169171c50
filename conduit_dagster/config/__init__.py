"""Pipeline files and project settings, parsed and checked; every mistake is a finding with its place.

Imports neither Spark nor Dagster: validation finishes in well under a second.
"""

from conduit_dagster.config.delivery import DeliverySettings, LogRetention, Recovery, Trigger
from conduit_dagster.config.findings import Finding, did_you_mean, nearest
from conduit_dagster.config.folder import LoadedFiles, dagster_name, load
from conduit_dagster.config.parse import ParsedFile, ParsedPipeline, parse_file, parse_text
from conduit_dagster.config.pipeline import ConnectorConfig, DeadLetterQueue, Pipeline, PipelineFile, ProcessorConfig
from conduit_dagster.config.project import Project
from conduit_dagster.config.project_settings import ProjectSettings

__all__ = [
    "ConnectorConfig",
    "DeadLetterQueue",
    "DeliverySettings",
    "Finding",
    "LoadedFiles",
    "LogRetention",
    "ParsedFile",
    "ParsedPipeline",
    "Pipeline",
    "PipelineFile",
    "ProcessorConfig",
    "Project",
    "ProjectSettings",
    "Recovery",
    "Trigger",
    "dagster_name",
    "did_you_mean",
    "load",
    "nearest",
    "parse_file",
    "parse_text",
]
