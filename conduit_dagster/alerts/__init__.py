"""Alerts: when to send one, its content, and its delivery. Independent of Dagster."""
