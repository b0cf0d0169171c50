"""The engine: plans, stages, resolves, prepares, publishes and recovers. Independent of Dagster."""
