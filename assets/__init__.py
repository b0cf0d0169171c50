"""Dagster assets, asset checks and jobs of the pipelines."""
