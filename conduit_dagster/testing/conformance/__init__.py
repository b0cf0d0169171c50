"""Conformance suites, the rules for every plugin as tests: derive from one of the classes in a test module.

    from conduit_dagster.testing.conformance import ProcessorConformance, plugin_module

    class TestClean(ProcessorConformance):
        processor = plugin_module("clean", __file__).Clean  # of plugins/clean.py
        settings = {"field": ".Payload.After.name"}

All built-in plugins pass them. They need pytest, and no Spark.
"""

from conduit_dagster.testing.conformance.destinations import DestinationConformance
from conduit_dagster.testing.conformance.of_project import create_connector, plugin_module
from conduit_dagster.testing.conformance.processors import ProcessorConformance, odd_records
from conduit_dagster.testing.conformance.sources import SourceConformance

__all__ = [
    "DestinationConformance",
    "ProcessorConformance",
    "SourceConformance",
    "create_connector",
    "odd_records",
    "plugin_module",
]
