"""Prometheus metrics: of the pipelines that run in this process, and of all that the state store knows."""
