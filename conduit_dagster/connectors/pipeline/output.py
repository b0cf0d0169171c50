"""Read mode for the output of another pipeline's ``file`` destination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conduit_dagster import storage
from conduit_dagster.connectors.file.destination import NO_FORMAT
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile
from conduit_dagster.connectors.file.line_reader import Mark, read_lines, scan
from conduit_dagster.connectors.file.open_file import MARK, FileChanged, OpenFile, open_found
from conduit_dagster.connectors.file.settings import FileDestinationSettings
from conduit_dagster.connectors.file.step_ranges import reach
from conduit_dagster.connectors.pipeline.published import (
    OutputPlace,
    Piece,
    ProjectView,
    Published,
    PublishedLines,
    parse_place,
    unread,
    unread_bytes,
)
from conduit_dagster.connectors.pipeline.read_mode import (
    READABLE,
    Upstream,
    not_readable,
    output_elsewhere,
    output_gone,
    output_moved,
    relabel,
)
from conduit_dagster.connectors.step_planning import MOST_FILES
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions, Split
from conduit_dagster.state.readers import PLUGIN, output_readers, step_of

_LONGEST_LINE = 1 << 40
"""No practical limit: the other pipeline wrote the file, so it certainly consists of lines."""
_OTHER = "it is another file"


class OutputReadMode:
    """Published output of the destination, line by line, in the order of publication."""

    def __init__(self, pipeline: str, upstream: Upstream, context: ConnectorContext, project: ProjectView) -> None:
        destination = upstream.connector
        written = FileDestinationSettings.model_validate(upstream.output)
        path = context.resolve(written.path)
        self._path = Path(storage.local_path(path) or path)
        self._log, self._reader = (pipeline, destination), context.full_id
        self._published = Published(pipeline, destination, self._path, project)
        self._project, self._context = project, context
        self._format = written.format

    @property
    def unit(self) -> dict[str, Any]:
        """Destination and path: output at another path is other data."""
        pipeline, destination = self._log
        return {"plugin": PLUGIN, "pipeline": pipeline, "destination": destination, "output": str(self._path)}

    def place(self, position: Any) -> Any:
        """Return the position without the identity of its file, which is a mere observation."""
        at = parse_place(position)
        return [at.file, at.byte, at.line]

    # -- how far ------------------------------------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """Return the position before the first line.

        Raises ``FatalError`` (``chain.output_gone``) if the source's last position is in an output at another path, and
        published bytes behind it are unread.
        """
        own = (self._context.pipeline, self._context.connector, self._log)
        for reader in self._project.read(lambda connection: list(output_readers(connection))):
            old = Path(self._context.resolve(reader.output))
            if (reader.pipeline, reader.connector, reader.of) == own and old != self._path:
                self._require_read(old, parse_place(reader.position))
        return OutputPlace().as_json()

    def _require_read(self, old: Path, at: OutputPlace) -> None:
        pieces = Published(*self._log, old, self._project).pieces(at.file) or []
        if size := unread_bytes(unread(pieces, at), at):
            raise output_moved(":".join(self._log), self._reader, (str(old), str(self._path)), size)

    def horizon(self) -> dict[str, Any]:
        """Return the current end of the published output."""
        pieces = self._published.pieces()
        return {"file": pieces[-1].name, "byte": pieces[-1].length} if pieces else {"file": "", "byte": 0}

    def latest(self, start: dict[str, Any], limit: Limit, horizon: Any) -> dict[str, Any]:
        """Return the position after whole lines within the limit.

        Raises ``FatalError`` (``chain.output_gone``) if the file was replaced, or a part before its end was removed;
        and ``TransientError`` (``chain.output_elsewhere``) at the end if more is published at another path by now.
        """
        first = at = parse_place(start)
        left, pieces = limit, self._behind(at, horizon)
        for piece in pieces[:MOST_FILES]:
            mark = at.line_end if piece.name == at.file else Mark(0, 0)
            with self._open(piece, at) as opened:
                step = reach(opened, mark, piece.length, left, True, _LONGEST_LINE)
                at = self._at(piece, opened, step.end, at)
            left = Limit(left.records - (step.end.line - mark.line), left.bytes - (step.end.offset - mark.offset))
            if step.limited or min(left) <= 0:
                break
        # the engine compares with the stored position: one of an older version stays unchanged if nothing follows
        if at == first:
            self._require_place()
            return start
        # before a step is planned over it: otherwise the plan would not fit the part that is put back
        self._require_steps(first, at, [piece.name for piece in pieces])
        return at.as_json()

    def _require_place(self) -> None:
        """Raise if more will not come: a run keeps the other pipeline's file as it was when the run began."""
        if moved_to := self._published.moved_to:
            raise output_elsewhere(":".join(self._log), self._reader, (str(self._path), moved_to))

    def _behind(self, at: OutputPlace, horizon: Any = None) -> list[Piece]:
        """Return the files with published bytes after a place, up to the horizon."""
        pieces = self._known(at)
        if horizon is not None:
            end = horizon["file"], horizon["byte"]
            upto = [p._replace(length=min(p.length, end[1]) if p.name == end[0] else p.length) for p in pieces]
            pieces = [piece for piece in upto if piece.name <= end[0]]
        return unread(pieces, at)

    def _known(self, at: OutputPlace) -> list[Piece]:
        pieces, read = self._published.pieces(at.file), at != OutputPlace()
        if pieces is None and read:
            raise self._gone(str(self._path), "that pipeline has no such destination any more")
        known = {piece.name: piece for piece in pieces or ()}
        if read and at.file in known:
            self._require(known[at.file], at)
        elif read and at.file and not at.is_ended and not Path(self._path, at.file).is_file():
            # its rest was never read, and is not skipped
            raise self._gone(f"{self._path}/{at.file}", "it was removed")
        return pieces or []

    def _require(self, piece: Piece, upto: OutputPlace) -> None:
        """Raise unless the file is the one that was read and has all bytes to be read."""
        self._open(piece, upto).close()

    def _open(self, piece: Piece, *seen: OutputPlace) -> OpenFile:
        """Open the published file, which must match every place in it that was seen before.

        Raises ``FatalError`` (``chain.output_gone``) if it is another file, or if bytes of it are missing.
        """
        opened = self._opened(piece.path)
        if not TrackedFile("", 0, piece.inode, birth=piece.birth).may_be(opened.found):
            raise self._gone(piece.path, _OTHER)
        for place in seen:
            if place.file == piece.name and place != OutputPlace():
                self._compare(opened, place, piece.length)
        if opened.found.size < piece.length:
            raise self._gone(piece.path, f"it ends before byte {piece.length}")
        return opened

    def _opened(self, path: str) -> OpenFile:
        opened = open_found(FoundFile(path, path, 0, 0, 0)) if Path(path).is_file() else None
        if opened is None:
            raise self._gone(path, "it was removed")
        return opened

    def _compare(self, opened: OpenFile, place: OutputPlace, length: int) -> None:
        """Raise if it is not the file of the place, or if the part already read has changed."""
        tracked = place.tracked(opened)
        if not tracked.may_be(opened.found):
            raise self._gone(opened.url, _OTHER)
        if min(opened.found.size, length) < place.byte:
            raise self._gone(opened.url, f"it ends before byte {place.byte}")
        if not opened.holds(tracked):
            raise self._gone(opened.url, f"it has other bytes before byte {place.byte}")

    def _at(self, piece: Piece, opened: OpenFile, to: Mark, before: OutputPlace) -> OutputPlace:
        """Return a place in a file. ``before``: any place in it, or the last one in the file before it."""
        found, files = opened.found, before.files + (piece.name != before.file)
        place = OutputPlace(
            piece.name, inode=found.inode, birth=found.birth, modified=found.modified, changed=found.changed,
            length=piece.length, files=files,
        )  # fmt: skip
        return place.moved(to, self._mark(opened, to.offset))

    def _mark(self, opened: OpenFile, byte: int, before: bytes = b"") -> str:
        try:
            return opened.mark(byte, before)
        except FileChanged:
            raise self._gone(opened.url, f"it has other bytes before byte {byte}") from None

    def _gone(self, place: str, what: str) -> FatalError:
        return output_gone(":".join(self._log), self._reader, place, what)

    def lag(self, position: Any) -> int:
        """Return the number of published bytes after the position."""
        at = parse_place(position)
        return unread_bytes(self._behind(at), at)

    # -- planned ranges -------------------------------------------------------------------------------------------

    def verify(self, start: Any, end: Any) -> None:
        """Raise ``FatalError`` unless all files of the range exist, and its ends match the positions."""
        first, last = parse_place(start), parse_place(end)
        if first == last or last == OutputPlace():
            return
        found = {piece.name: piece for piece in self._known(first) if piece.length}
        if last.file not in found:
            is_there = Path(self._path, last.file).is_file()
            what = "has not been published since that destination was added" if is_there else "is not there"
            raise self._gone(str(self._path), f"{last.file or 'the file'} {what}")
        there = sum(first.file < name <= last.file for name in found)
        if last.files and there != last.files - first.files:
            raise self._gone(
                str(self._path), f"of {last.files - first.files} files up to {last.file} {there} are there"
            )
        self._require_steps(first, last, list(found))
        self._require(found[last.file], last)

    def _require_steps(self, first: OutputPlace, last: OutputPlace, names: list[str]) -> None:
        """Raise if a part in between is not among these. A first read begins with existing parts."""
        if not first.file or not last.file:
            return
        there = {step_of(name) for name in names}
        for step in self._published.steps_between(step_of(first.file), step_of(last.file)):
            if step not in there:
                raise self._gone(str(self._path), f"step {step} was published and is not there")

    def split(self, start: Any, end: Any, n: int) -> list[Split]:
        """Split between lines into pieces of about equal size."""
        self.verify(start, end)
        at, last, splits, ordinal = parse_place(start), parse_place(end), list[Split](), 0
        before = at
        pieces = self._behind(at, {"file": last.file, "byte": last.byte}) if at != last else []
        share = max(1, unread_bytes(pieces, at) // n)
        for piece in pieces:
            low = at.line_end if piece.name == at.file else Mark(0, 0)
            with self._open(piece, at, last) as opened:
                for high, name in self._ends(opened, low, piece, share):
                    # one of no lines where all are missing: a range has a split
                    if name == NO_FORMAT and (splits or piece is not pieces[-1] or high.offset < piece.length):
                        low = high
                        continue
                    low = high if name == NO_FORMAT else low
                    detail = {"path": piece.path, "to": high.offset, "format": name or self._format}
                    before = self._at(piece, opened, low, before)
                    count = high.line - low.line
                    splits.append(Split(before.as_json(), ordinal, count, high.offset - low.offset, detail))
                    low, ordinal = high, ordinal + count
        return splits

    def _ends(self, opened: OpenFile, low: Mark, piece: Piece, share: int) -> Iterator[tuple[Mark, str]]:
        """Yield the ends of a file's splits, each with the format of its lines: it may have been edited in between.

        Lines that are missing, with line ends in their place, have ``NO_FORMAT``. Raises ``FatalError``
        (``chain.not_readable``) for lines that can't be read back.
        """
        for upto, name in piece.stretches or [(piece.length, self._format)]:
            if low.offset < upto and name not in (NO_FORMAT, *READABLE):
                raise not_readable(":".join(self._log), self._reader, f"{piece.path}, line {low.line + 1}", name)
            for high in _cuts(opened, low, min(upto, piece.length), share) if low.offset < upto else ():
                yield high, name
                low = high

    def relocate(self, split: Split) -> Split:
        """Return the split unchanged: files are not moved."""
        return split

    # -- reading, in tasks ----------------------------------------------------------------------------------------

    def read(self, split: Split, options: ReadOptions, labels: dict[str, str]) -> Iterator[Block]:
        """Yield the lines as records. Raises ``FatalError`` (``chain.no_record``) for a line that is not a record."""
        at, path = parse_place(split.start), split.detail["path"]
        byte, line, to = at.byte, at.line, split.detail["to"]
        opened, lines_of = self._opened(path), PublishedLines(split.detail.get("format", self._format), at.file, path)
        self._compare(opened, at, to)
        for lines in read_lines(opened, byte, to, options.block_bytes):
            for first in range(0, len(lines), options.block_records):
                some = lines[first : first + options.block_records]
                marks: list[Mark] = []
                for text in some:
                    byte, line = byte + len(text) + 1, line + 1
                    marks.append(Mark(byte, line))
                records = [lines_of.record(text, mark) for text, mark in zip(some, marks, strict=True)]
                relabel(records, labels)
                yield Block(records, self._boundary(opened, at, marks, some))

    def _boundary(
        self, opened: OpenFile, at: OutputPlace, marks: list[Mark], lines: list[bytes]
    ) -> Callable[[int], Any]:
        """Return the boundary function, for the file that was read, whatever its path now refers to."""

        def boundary(i: int) -> Any:
            return at.moved(marks[i], self._mark(opened, marks[i].offset, (lines[i] + b"\n")[-MARK:])).as_json()

        return boundary


def _cuts(opened: OpenFile, low: Mark, upto: int, share: int) -> Iterator[Mark]:
    """Yield the ends of a file's pieces, the last one at ``upto``."""
    begin = low.offset
    for mark in scan(opened, low, upto, _LONGEST_LINE):
        if mark.offset == upto:
            yield mark
            return
        if mark.offset - begin >= share:
            begin = mark.offset
            yield mark
