"""What is wrong with a query or with the types of its columns."""

from __future__ import annotations


class SqlTextError(Exception):
    """Something in a text that does not do."""

    def __init__(self, message: str, fix: str, place: int = 0) -> None:
        """``place``: where in the text it is, from 0."""
        super().__init__(message)
        self.message, self.fix, self.place = message, fix, place
