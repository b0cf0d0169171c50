"""Position of a source of Parquet files: how much of each was read, and the lists of fully read files."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from conduit_dagster.connectors import kept_lists
from conduit_dagster.connectors.file.file_state import FoundFile
from conduit_dagster.connectors.kept_lists import FinishedLists, FinishedRows, KeptLists, PositionWithLists
from conduit_dagster.connectors.parquet.footer import seen_of
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.sdk import ConnectorContext


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


def parse_position(value: Any) -> ParquetPosition:
    """Return the position from its stored JSON value."""
    return msgspec.convert(value, ParquetPosition)


def parse_file(value: Any) -> ReadFile:
    """Return the file from a split's start or from a boundary."""
    return msgspec.convert(value, ReadFile)


learn(ParquetPosition, ReadFile)


class FinishedParquet(msgspec.Struct, frozen=True):
    """A file whose rows were all read, and its state when its footer was read."""

    name: str
    mark: str
    number: int
    rows: int
    seen: list[int]
    """Its observed state; empty if that proves nothing."""

    @property
    def slot(self) -> str:
        """Its name; empty for a row that hides an earlier one whose file is gone."""
        return self.name

    @property
    def file(self) -> ReadFile:
        """The file in the form of a position."""
        return ReadFile(self.name, self.mark, self.number, self.rows, self.rows)


def finished_row(file: ReadFile, found: FoundFile) -> FinishedParquet:
    """Return the row of a fully read file, in the state ``found``."""
    return FinishedParquet(file.name, file.mark, file.number, file.rows, seen_of(found))


class FinishedParquets(FinishedRows[FinishedParquet]):
    """The files in the lists of one position, by name. Immutable."""

    def settled(self, found: FoundFile) -> FinishedParquet | None:
        """Return the row of the found file if it has not changed since.

        No tool can set an inode's change time, so equal states mean equal content.
        """
        rows = self.at(found.name)
        if not rows or not found.changed:
            return None
        seen = seen_of(found)
        return next((row for row in rows if seen and row.seen == seen), None)

    def only(self, name: str, inode: int) -> FinishedParquet | None:
        """Return the only file that had this name, if it had this inode."""
        rows = self.at(name)
        return rows[0] if len(rows) == 1 and rows[0].seen[:1] == [inode] else None

    def identified(self, name: str, mark: str) -> FinishedParquet | None:
        """Return the file with this name and mark."""
        return next((row for row in self.at(name) if row.mark == mark), None)


NO_PARQUETS: Final = FinishedParquets({}, {})


class ParquetStates:
    """Scan results for the files that a position knows."""

    def __init__(self) -> None:
        self.here: dict[int, FoundFile] = {}
        """Current location of the existing files of the position, by number."""
        self.gone: list[ReadFile] = []
        """Fully read files of the position that no longer exist."""
        self.missing: list[int] = []
        """Numbers of the files of the lists that no longer exist."""
        self.changed: list[FinishedParquet] = []
        """Files of the lists with the same content in another state, such as another time."""


class ParquetLists(KeptLists[FinishedParquet, FinishedParquets]):
    """Lists of the finished files of a folder or glob."""

    def __init__(self, context: ConnectorContext) -> None:
        super().__init__(context, FinishedParquet, NO_PARQUETS)

    def left(self, position: ParquetPosition, states: ParquetStates) -> ParquetPosition:
        """Return the position without its finished files, after they are stored durably in a list.

        Missing files are forgotten: a copy that comes back is read again. ``position``: the start of a step, without
        missing files.
        """
        read = (position.read or FinishedLists()).moved(states.gone, ())
        leaving = [file for file in position.files if file.done == file.rows]
        if len(leaving) < kept_lists.LEAVES_AT:
            leaving = []
        if leaving or states.missing:
            rows = [finished_row(file, states.here[file.number]) for file in leaving]
            hidden = [FinishedParquet("", "", number, 0, []) for number in states.missing]
            read = self.added(read.moved(leaving, ()), [*rows, *hidden, *states.changed])
        numbers = {file.number for file in leaving}
        files = tuple(file for file in position.files if file.number not in numbers)
        return msgspec.structs.replace(position, files=files, read=read)
