"""Published output of another pipeline's ``file`` destination: its files, how far each may be read, places in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.config.project import Project
from conduit_dagster.connectors.file import file_state
from conduit_dagster.connectors.file.destination import outputs, stretches
from conduit_dagster.connectors.file.file_state import TrackedFile
from conduit_dagster.connectors.file.line_reader import Mark
from conduit_dagster.connectors.file.open_file import OpenFile
from conduit_dagster.connectors.pipeline.read_mode import no_record
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.record import Record, decode
from conduit_dagster.state.claim import has_claim, project_store
from conduit_dagster.state.database import open_database, reading, unreachable
from conduit_dagster.state.readers import step_of
from conduit_dagster.state.sqlite_store import sqlite_file
from conduit_dagster.state.tables import consumers, deliveries

T = TypeVar("T")


class ProjectView:
    """View of the project's state store and logs, opened on first use."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    @lazy_property
    def project(self) -> Project:
        """Project with this root."""
        return Project.find(self._root)

    @lazy_property
    def _store(self) -> sa.Engine:
        return project_store(self.project)

    def whole(self, path: str) -> str:
        """Return a path relative to the project as a whole one."""
        return str(self._root / path)

    @property
    def _database(self) -> sa.Engine:
        file = sqlite_file(sa.make_url(self.project.state_url))
        if file is not None and not file.is_file() and not has_claim(self.project.home):
            return open_database("sqlite:///:memory:")  # nothing has ever run, and reading must not create a store
        return self._store

    def read(self, work: Callable[[sa.Connection], T], /) -> T:
        """Return the result of ``work`` on one snapshot. Raises ``TransientError`` (``state.unreachable``)."""
        database = self._database
        try:
            with reading(database) as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise unreachable(database, error, "the state store does not answer") from error


class Piece(NamedTuple):
    """A file and the number of its published bytes, with the identity to compare once it is open."""

    name: str
    """Name in the folder of parts; empty for one ordered file."""
    path: str
    length: int
    inode: int
    birth: int
    """Birth time in nanoseconds; 0 if unknown."""
    stretches: Sequence[tuple[int, str]] = ()
    """Where each format of its lines ends, in bytes, and its name; empty if unknown."""


class Published:
    """Published files, on the driver. The state store determines how far deliveries are committed, not a file's length.

    Later bytes belong to a delivery in progress, or to a torn one that recovery writes again.
    """

    def __init__(self, pipeline: str, destination: str, path: Path, project: ProjectView) -> None:
        self._mine = (pipeline, destination)
        self._path, self._project = path, project
        self._written_first: str | None = None
        self._written_now = ""

    def pieces(self, after: str = "") -> list[Piece] | None:
        """Return the files in order, from ``after`` on; an empty list if nothing is published there yet.

        Returns None if the other pipeline no longer has such a destination.
        """
        row = self._project.read(self._row)
        if row is None:
            return None
        every = [(self._project.whole(one["path"]), one) for one in outputs(json.loads(row[0]) if row[0] else {})]
        self._written_now = every[0][0] if every else ""
        if self._written_first is None:
            self._written_first = self._written_now
        target = next((one for path, one in every if path == str(self._path)), None)
        if target is None:
            return []
        return list(
            self._ordered(target) if "length" in target else self._parts(target, int(row[1]), after.partition("/")[0])
        )

    @property
    def moved_to(self) -> str:
        """Other path at which the destination publishes since this object looked first; empty if there is none."""
        now = self._written_now
        return "" if now in (self._written_first, str(self._path)) else now

    def steps_between(self, first: int, last: int) -> list[int]:
        """Return the steps after ``first`` and before ``last`` that published records, even if their files are gone."""
        pipeline, consumer = self._mine
        column = deliveries.c
        own = (column.pipeline == pipeline, column.consumer == consumer, column.skip == 0)
        published = (column.state == "done", column.handled > 0, column.step > first, column.step < last)
        wanted = sa.select(column.step).where(*own, *published).order_by(column.step)
        return self._project.read(lambda connection: list(connection.execute(wanted).scalars()))

    def _row(self, connection: sa.Connection) -> Any:
        pipeline, consumer = self._mine
        mine = (consumers.c.pipeline == pipeline, consumers.c.consumer == consumer)
        return connection.execute(sa.select(consumers.c.target, consumers.c.step).where(*mine)).first()

    def _ordered(self, target: dict[str, Any]) -> Iterator[Piece]:
        # with at-most-once, bytes after the base may be missing until the next delivery has repaired them
        length = target.get("base", target["length"])
        birthtime, formats = target.get("birth", 0), stretches(target, 0, length)
        yield Piece("", str(self._path), length, target["inode"], birthtime, formats)

    def _parts(self, target: dict[str, Any], step: int, after: str) -> Iterator[Piece]:
        """Yield the parts in name order, without steps that are not done. A folder becomes visible by one rename."""
        for folder in sorted(one for one in self._path.glob("step=*") if one.name >= after):
            number = step_of(folder.name)
            if number > step:
                return
            names = [name for _, name in stretches(target, number, number + 1)]
            for part in sorted(folder.glob("part-*")):
                found, made = part.stat(), file_state.birth_of(str(part))
                formats = [(found.st_size, name) for name in names]
                yield Piece(f"{folder.name}/{part.name}", str(part), found.st_size, found.st_ino, made, formats)


class OutputPlace(msgspec.Struct, frozen=True):
    """Position after a line of one published file.

    A field missing from a stored position was unknown to the version that stored it.
    """

    file: str = ""
    byte: int = 0
    line: int = 0
    inode: int = 0
    birth: int = 0
    modified: int = 0
    changed: int = 0
    length: int = 0
    """Length of the file when it was read. Part files don't change: one that was read to its end is not needed again.
    """
    files: int = 0
    """Number of part files begun so far; 0 for one ordered file. Only differences are meaningful."""
    mark: str = ""
    """Digest of bytes before ``byte``."""

    @property
    def is_ended(self) -> bool:
        """Whether a part file is fully read."""
        return 0 < self.length <= self.byte

    @property
    def line_end(self) -> Mark:
        """The place as one between two lines."""
        return Mark(self.byte, self.line)

    def moved(self, to: Mark, mark: str) -> OutputPlace:
        """Return the place after another line of the file; ``mark``: of the bytes before it."""
        return msgspec.structs.replace(self, byte=to.offset, line=to.line, mark=mark)

    def tracked(self, opened: OpenFile) -> TrackedFile:
        """Return the file as it was seen, for comparison with an open one."""
        return TrackedFile(
            self.file,
            0,
            self.inode,
            offset=self.byte,
            mark=self.mark or opened.mark(self.byte),
            modified=self.modified,
            changed=self.changed,
            birth=self.birth,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        return msgspec.structs.asdict(self)


def parse_place(position: Any) -> OutputPlace:
    """Return the place from a position, or from the start of a split."""
    return msgspec.convert(position, OutputPlace)


def unread(pieces: list[Piece], at: OutputPlace) -> list[Piece]:
    """Return the files with bytes after a place."""
    return [p for p in pieces if p.length and (p.name > at.file or (p.name == at.file and p.length > at.byte))]


def unread_bytes(pieces: list[Piece], at: OutputPlace) -> int:
    """Return the number of bytes in these files after a place in the first."""
    return sum(piece.length - (at.byte if piece.name == at.file else 0) for piece in pieces)


class PublishedLines:
    """Lines of one format in one file."""

    def __init__(self, name: str, file: str, path: str) -> None:
        """``file``: its name in the folder of parts; empty for one ordered file."""
        self._parse, self._counts = _PARSERS.get(name, _raw), name != "opencdc/json"
        self._file, self._path = file, path

    def record(self, text: bytes, mark: Mark) -> Record:
        """Return the record of the line before the mark. Raises ``FatalError`` (``chain.no_record``)."""
        try:
            record = self._parse(text)
        except ValueError as error:
            raise no_record(f"{self._path}, line {mark.line}", str(error)) from error
        record.position = f"{self._file}:{mark.offset}" if self._file else mark.offset
        if self._counts:
            record.key = b"%d" % mark.line
        return record


def _payload(line: bytes) -> Record:
    """Parse a document, or take the line as raw: raw payloads are written unchanged and may have any content."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return _raw(line)
    if value is None:
        return Record(0, {})
    return Record(0, {}, value) if isinstance(value, dict) else _raw(line)


def _raw(line: bytes) -> Record:
    return Record(0, {}, line)


_PARSERS: Final[dict[str, Callable[[bytes], Record]]] = {"opencdc/json": decode, "payload/json": _payload}
"""Parsers of a format's lines, to complete records or documents; any other, a template, is read as raw lines.

They raise ``ValueError`` for a line that is not a record; msgspec's decoding errors derive from that.
"""


learn(OutputPlace)
