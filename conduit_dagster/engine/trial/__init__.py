"""Trying a pipeline without running it: nothing is planned, sent or stored, and no Spark is needed."""
