"""Makes the pictures of Dagster in the documentation from real runs: ``python -m screenshots``."""
