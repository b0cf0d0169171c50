"""Staged rows at rest: lines of COPY text in one file per task, and a footer that says which line goes where."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from conduit_dagster.connectors.base import Delivery
from conduit_dagster.connectors.postgres.names import TableName
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import storage
from conduit_dagster.state.steps import Part

_TAIL = 17
"""The footer's own length in bytes, as 16 digits and a line end."""


class Group(msgspec.Struct, frozen=True):
    """What lines have in common that one COPY can take."""

    table: TableName
    columns: tuple[str, ...]
    merge: bool = False
    """Each line begins with an operation (``c``, ``u`` or ``d``) and, in hex, which of the columns it holds."""
    key: tuple[str, ...] = ()


class Run(NamedTuple):
    """Lines that follow each other and belong to one group."""

    group: int
    records: int
    bytes: int


class Missing(msgspec.Struct):
    """A table that was not there when records were staged for it, and is to be created."""

    table: TableName
    types: dict[str, str | None]
    """Column to type, as far as values showed it."""
    key: tuple[str, ...] = ()


class Index(msgspec.Struct):
    """The footer: the lines of a part, run by run."""

    groups: list[Group]
    runs: list[Run]
    missing: list[Missing] = []

    def encode(self) -> bytes:
        """One line, and a line with its length."""
        body = msgspec.json.encode(self) + b"\n"
        return body + b"%016d\n" % len(body)


def read_index(delivery: Delivery, part: Part) -> Index:
    """The footer of a part. Raises ``FatalError`` where the file is not what was staged."""
    url = storage.join(delivery.staging, part.name)
    with storage.open_read(url) as file:
        file.seek(part.bytes - _TAIL)
        tail = file.read(_TAIL)
        length = int(tail) if tail[:-1].isdigit() else 0
        file.seek(part.bytes - _TAIL - length)
        body = file.read(length)
    try:
        return msgspec.json.decode(body, type=Index)
    except msgspec.DecodeError:
        fix = "was it changed by hand? remove it, and it is staged again"
        raise FatalError(f"{url} has no footer", code="postgres.staging", place=url, fix=fix) from None
