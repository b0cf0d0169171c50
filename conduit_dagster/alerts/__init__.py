"""Alerts: what is worth one, what it says, and how it is sent. Knows nothing of Dagster."""
