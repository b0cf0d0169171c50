"""Position of a source of Parquet files: how much of each was read, and the lists of fully read files."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.connectors.kept_lists import PositionWithLists
from conduit_dagster.msgspec_warmup import learn


class ReadFile(msgspec.Struct, frozen=True):
    """A file, identified by its name and its footer's mark, and the number of its rows before the position."""

    name: str
    mark: str
    number: int
    """Index of the file in the source, from 0."""
    rows: int
    """Number of rows in the whole file."""
    done: int = 0

    @property
    def ident(self) -> tuple[str, str]:
        """Identity of the file: a name that comes back with other content is another file."""
        return self.name, self.mark

    @property
    def placed(self) -> tuple[Any, ...]:
        """Fields that go into a place. Never change them: a stored sum can't be recomputed."""
        return self.name, self.mark, self.number, self.rows, self.done


class ParquetPosition(PositionWithLists, frozen=True):
    """Position of a source: the files that were read at least in part and are not in the lists, in reading order."""

    files: tuple[ReadFile, ...] = ()

    def with_files(self, moved: dict[int, ReadFile]) -> ParquetPosition:
        """Return the position with these files in their new states, new ones at the end."""
        kept = [moved.get(file.number, file) for file in self.files]
        known = {file.number for file in self.files}
        fresh = [file for number, file in moved.items() if number not in known]
        seen = max([self.seen, *(file.number + 1 for file in fresh)])
        return msgspec.structs.replace(self, seen=seen, files=(*kept, *fresh))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        value: dict[str, Any] = {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}
        if self.read is not None:
            value["read"] = self.read.as_json()
        return value


def parse_position(value: Any) -> ParquetPosition:
    """Return the position from its stored JSON value."""
    return msgspec.convert(value, ParquetPosition)


def parse_file(value: Any) -> ReadFile:
    """Return the file from a split's start or from a boundary."""
    return msgspec.convert(value, ReadFile)


learn(ParquetPosition, ReadFile)
