"""Connectors: one package per plugin, with its source and its destination; `ls` lists them all."""
