"""Trials of a pipeline: nothing is planned, sent or stored, and no Spark is needed."""
