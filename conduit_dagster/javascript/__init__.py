"""Execution of user JavaScript on records, one at a time, within limits, for ``custom.javascript``."""
