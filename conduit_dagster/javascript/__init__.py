"""Runs a user's JavaScript on records, one at a time, within limits: for ``custom.javascript``."""
