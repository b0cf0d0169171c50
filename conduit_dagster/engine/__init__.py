"""Moves records: plans, stages, resolves, prepares, publishes, recovers. Knows nothing of Dagster."""
