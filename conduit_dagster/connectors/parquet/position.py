"""Which Parquet files a source has read, and how far: its position."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.learn import learn


class ReadFile(msgspec.Struct, frozen=True):
    """One file, and how many of its rows lie before the position. Known by its name and its footer."""

    name: str
    mark: str
    number: int
    """The how-manieth file of the source it is, from 0."""
    rows: int
    """Of the whole file."""
    done: int = 0

    @property
    def ident(self) -> tuple[str, str]:
        """What tells files apart: a name that comes back with another content is another file."""
        return self.name, self.mark


class ParquetPosition(msgspec.Struct, frozen=True):
    """Every file that is still there, and of which something was read, in reading order."""

    seen: int = 0
    files: tuple[ReadFile, ...] = ()

    def with_files(self, moved: dict[int, ReadFile]) -> ParquetPosition:
        """The position with these files in their new states, new ones at the end."""
        kept = [moved.get(file.number, file) for file in self.files]
        known = {file.number for file in self.files}
        fresh = [file for number, file in moved.items() if number not in known]
        return ParquetPosition(max([self.seen, *(file.number + 1 for file in fresh)]), (*kept, *fresh))

    def as_json(self) -> dict[str, Any]:
        """The JSON value that the engine stores."""
        return {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}


def parse_position(value: Any) -> ParquetPosition:
    """The position behind a stored JSON value."""
    return msgspec.convert(value, ParquetPosition)


def parse_file(value: Any) -> ReadFile:
    """The file behind a split's start or a boundary."""
    return msgspec.convert(value, ReadFile)


learn(ParquetPosition, ReadFile)
