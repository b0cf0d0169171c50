"""Data pipelines with delivery guarantees: Conduit's semantics as Dagster assets on Spark."""
