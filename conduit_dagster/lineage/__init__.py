"""Lineage for tools outside of Dagster."""
