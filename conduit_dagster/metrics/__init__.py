"""Prometheus metrics: of the pipelines that run in this process, and of all pipelines in the state store."""
