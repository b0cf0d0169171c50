"""Errors in a query or in the types of its columns."""

from __future__ import annotations


class SqlTextError(Exception):
    """An error in the text of a query or of its column types."""

    def __init__(self, message: str, fix: str, place: int = 0) -> None:
        """``place``: offset of the error in the text, from 0."""
        super().__init__(message)
        self.message, self.fix, self.place = message, fix, place
