"""Processors: one file per plugin; `ls` is the catalogue."""
