"""Staged rows at rest: lines of COPY text in one file per task, and a footer that says which line goes where.

Beside a part, and no part of its digest, lies what is known of tables that were not there: a part that is staged again
must be the same although a child of the delivery has created them by then.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from conduit_dagster.connectors.postgres.names import TableName
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery
from conduit_dagster.state import storage
from conduit_dagster.state.steps import Part

_T = TypeVar("_T")
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
    return _decoded(body, Index, url)


def write_missing(staging: str, part: Part, missing: list[Missing]) -> None:
    """Keeps them beside the part, durable as the part is."""
    file = storage.NewFile(_beside(staging, part))
    file.write(msgspec.json.encode(missing))
    file.finish()


def read_missing(delivery: Delivery, part: Part) -> list[Missing]:
    """The tables that were not there when the part was staged. Raises ``FatalError`` for what is no list of them."""
    url = _beside(delivery.staging, part)
    if storage.size(url) is None:
        return []
    with storage.open_read(url) as file:
        return _decoded(file.read(), list[Missing], url)


def _beside(staging: str, part: Part) -> str:
    return storage.join(staging, f"{part.name}.missing")


def _decoded(body: bytes, kind: type[_T], url: str) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        fix = "was it changed by hand? remove it, and it is staged again"
        raise FatalError(f"{url} is not as it was staged", code="postgres.staging", place=url, fix=fix) from None
