"""Sensors and schedules that Dagster's daemon runs for the pipelines of a code location."""
