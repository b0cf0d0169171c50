"""What a schema registry is."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Schema(NamedTuple):
    """A schema that is registered."""

    id: int
    """Its number in the registry: the same text has the same one."""
    text: str


class UnknownSchemaError(Exception):
    """The registry has no such schema."""


class SchemaRegistry(Protocol):
    """Gives schemas, and takes new ones. Each method raises ``TransientError`` where the registry is out of reach."""

    def by_id(self, number: int) -> Schema:
        """Raises :class:`UnknownSchemaError`."""
        ...

    def by_subject(self, subject: str, version: int) -> Schema:
        """``version`` counts from 1. Raises :class:`UnknownSchemaError`."""
        ...

    def register(self, subject: str, text: str) -> Schema:
        """The schema under this subject, as its newest version where it has it not yet."""
        ...
