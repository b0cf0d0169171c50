"""Columns for text that comes from records: whatever it holds, both kinds of state store take it, and the same."""

from __future__ import annotations

from sqlalchemy import Dialect, String, Text, TypeDecorator
from typing_extensions import override


def words(text: str, longest: int | None = None) -> str:
    """The text as a store keeps it: at most so long, NULs (which PostgreSQL can't hold) and lone surrogates escaped."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\0", "\\x00")[:longest]


class Words(TypeDecorator[str]):
    """Text of at most so many characters, or of any length. What is looked for is escaped and cut as well."""

    impl = String
    cache_ok = True

    def __init__(self, longest: int | None = None) -> None:
        super().__init__(longest)
        self.longest = longest
        if longest is None:
            self.impl = Text()

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else words(value, self.longest)
