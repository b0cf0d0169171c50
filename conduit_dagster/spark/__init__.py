"""Spark: which Java, which session, and jobs that can be cancelled."""
