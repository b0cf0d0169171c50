"""Spark: the choice of Java, sessions, and cancellable jobs."""
