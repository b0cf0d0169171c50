"""Connectors: one noun per plugin, its source and its destination; `ls` is the catalogue."""
