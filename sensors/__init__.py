"""Recovery and lifecycle: what Dagster's daemon does for the pipelines of a code location."""
