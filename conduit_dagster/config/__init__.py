"""Pipeline files and project settings: read, checked, every mistake a finding with its place.

Imports neither Spark nor Dagster: validation answers in well under a second.
"""

from conduit_dagster.config.delivery import Delivery, Recovery, Trigger
from conduit_dagster.config.findings import Finding, did_you_mean, nearest
from conduit_dagster.config.folder import Loaded, dagster_name, load
from conduit_dagster.config.parse import ParsedFile, ParsedPipeline, parse_file, parse_text
from conduit_dagster.config.pipeline import Connector, DeadLetterQueue, Pipeline, PipelineFile, Processor
from conduit_dagster.config.project import Project
from conduit_dagster.config.settings import ProjectSettings

__all__ = [
    "Connector",
    "DeadLetterQueue",
    "Delivery",
    "Finding",
    "Loaded",
    "ParsedFile",
    "ParsedPipeline",
    "Pipeline",
    "PipelineFile",
    "Processor",
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
