"""A model checker for the delivery protocol: see README.md."""
