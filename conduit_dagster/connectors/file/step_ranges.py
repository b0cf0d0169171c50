"""The range of each file that one step reads, and where a run that drains its source stops."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from conduit_dagster.connectors.file.file_scan import FileScan, SeenFile
from conduit_dagster.connectors.file.file_state import FoundFile, Quiet, TrackedFile
from conduit_dagster.connectors.file.line_reader import Mark, nth_end, scan
from conduit_dagster.connectors.file.listing import look
from conduit_dagster.connectors.file.open_file import MARK, FileChanged, OpenFile, open_found, require_plain
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.step_planning import before_failure
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit


class FileReach(NamedTuple):
    """End of a step in a file."""

    end: Mark
    marks: list[Mark]
    """Places between lines inside the range, about one per MiB, where it may be split."""
    limited: bool
    """Whether the limit leaves more whole lines to a later step."""
    unended: bool
    """Whether the last line has no line end."""


def reach(file: OpenFile, start: Mark, upto: int, limit: Limit, final: bool, max_line: int) -> FileReach:
    """Return the end of as many complete lines before byte ``upto`` as the limit allows; at least one, however long.

    ``final``: bytes after the last line end count as a line as well.
    """
    marks = list[Mark]()
    for mark in before_failure(scan(file, start, min(upto, start.offset + limit.bytes), max_line), marks):
        if mark.line - start.line > limit.records:
            last = marks[-1] if marks else start
            return FileReach(nth_end(file, last, limit.records - (last.line - start.line)), marks, True, False)
        marks.append(mark)
    if not marks and (first := _line_end(file, start, upto, max_line)):
        marks = [first]  # a line longer than a batch forms its own batch
    end = marks[-1] if marks else start
    if end.offset == upto:
        return FileReach(end, marks, False, False)
    try:
        is_more = any(scan(file, end, upto, max_line))
    except FatalError:
        if end.offset == start.offset:
            raise
        is_more = True  # the lines before it are read first
    if is_more:
        return FileReach(end, marks, True, False)
    full = end.line > start.line and (upto - start.offset > limit.bytes or end.line - start.line >= limit.records)
    if not final or full:
        return FileReach(end, marks, final and full, False)
    return FileReach(Mark(upto, end.line + 1), marks, False, True)


def _line_end(file: OpenFile, start: Mark, upto: int, max_line: int) -> Mark | None:
    """Return the place after the next line; None if it does not end before byte ``upto``.

    Raises ``FatalError`` (``file.line_too_long``).
    """
    return nth_end(file, start, 1) if any(scan(file, start, upto, max_line)) else None


_POLL: Final = 0.05
_MOST_WAITS: Final = 10
"""Maximum number of waiting times for a line that is written continuously and never ended."""


class Drain:
    """Horizon of a run: the size of every file, after half-written lines had time to be ended."""

    def __init__(self, files: FileScan, settings: FileSourceSettings) -> None:
        self._files, self._settings = files, settings
        self._quiet = Quiet()

    def horizon(self) -> dict[str, Bound]:
        """Return how much of each file to read. Waits only for files that end in half a line and changed recently."""
        listed = self._files.files()
        last = listed[-1].ident if listed else ""
        half = [found for found in listed if self._is_half(found, self._wait(found, last))]
        ends = {found.ident: found for found in [*listed, *self._awaited(half, last)]}
        return {ident: Bound(found.size, self._takes_rest(found, last)) for ident, found in ends.items()}

    def bound(self, horizon: Mapping[str, Bound], seen: SeenFile, first: int) -> Bound:
        """Return how much of a file to read; ``first``: number of the first new file.

        Known files and compressed ones may lie where no listing finds them, and are read as they are.
        """
        found = seen.found
        if found.ident not in horizon and (seen.file.number < first or found.unpacked):
            return Bound(found.size, self._takes_rest(found, ""))
        return horizon.get(found.ident, Bound())

    def _takes_rest(self, found: FoundFile, last: str) -> bool:
        if found.ident == last:
            return self._settings.read_unterminated
        return self._quiet.seconds(found) >= self._settings.rotate_wait

    def _wait(self, found: FoundFile, last: str) -> float:
        return self._settings.unterminated_wait if found.ident == last else self._settings.rotate_wait

    def _is_half(self, found: FoundFile, wait: float) -> bool:
        """Return whether its last line has no line end and may still be being written."""
        if not found.size or self._quiet.seconds(found) >= wait:
            return False
        opened = open_found(found)
        if opened is None:
            return False
        with opened:
            return not opened.is_line_end(opened.found.size)

    def _awaited(self, half: Iterable[FoundFile], last: str) -> Iterable[FoundFile]:
        """Yield each file once its last line is ended, or the waiting time is over."""
        began, waiting = time.monotonic(), {found.ident: found for found in half}
        while waiting:
            time.sleep(_POLL)
            now = self._again(waiting.values())
            for ident, before in list(waiting.items()):
                found, wait = now.get(ident, before), self._wait(before, last)
                is_over = self._quiet.seconds(found) >= wait or time.monotonic() - began >= _MOST_WAITS * wait
                if is_over or ident not in now or _is_ended(found, before.size):
                    del waiting[ident]
                    yield found
                else:
                    waiting[ident] = found

    def _again(self, files: Iterable[FoundFile]) -> dict[str, FoundFile]:
        """Return the current state of the files under their current names, without missing ones."""
        looks = [(found, look(found.url, found.name)) for found in files]
        if all(now is not None and now.ident == found.ident for found, now in looks):
            return {now.ident: now for _, now in looks if now is not None}
        return {found.ident: found for found in self._files.files()}


def _is_ended(found: FoundFile, size: int) -> bool:
    """Return whether the file has a line end after its former size, or is now shorter."""
    if found.size <= size:
        return found.size < size
    opened = open_found(found)
    if opened is None:
        return False
    with opened:
        return any(b"\n" in piece for piece in opened.chunks(size, found.size - size))


class Bound(NamedTuple):
    """The part of a file that a run that drains its source reads."""

    upto: int = 0
    takes_rest: bool = False
    """Whether a last line without its line end is a record, if the file still ends there."""


class Step(NamedTuple):
    """The part of a file that a step reads."""

    done: int
    """Offset up to which it is read afterwards."""
    upto: int
    """Offset up to which it would be read if every line were complete and no limit were reached."""
    after: TrackedFile | None = None
    """The file as recorded in the position after the step; None if nothing is read."""
    limited: bool = False
    """Whether the limit leaves more complete lines to a later step."""


class FileSteps:
    """Steps in the files of one source. Caches results, so that no byte is scanned twice without need."""

    def __init__(self, settings: FileSourceSettings) -> None:
        self._max_line, self._has_header = settings.max_line, settings.header
        self._marks: dict[int, list[Mark]] = {}
        self._fruitless: dict[str, tuple[Any, ...]] = {}
        self._warned: set[tuple[str, int]] = set()

    def take(self, seen: SeenFile, limit: Limit, bound: Bound | None) -> Step:
        """Return a step of as many complete lines as the limit allows, up to the bound if given.

        Raises ``FileChanged`` if the file differs from the one seen.
        """
        upto = seen.found.size if bound is None else min(seen.found.size, bound.upto)
        tried = (seen.file.offset, upto, seen.closed, bound, seen.found.modified)
        if upto <= seen.file.offset or self._fruitless.get(seen.found.ident) == tried:
            return Step(seen.file.offset, upto)
        with _open(seen) as opened:
            # from here on every byte, size and mark comes from this descriptor
            if not seen.file.offset:
                require_plain(opened.read_at(0, MARK), seen.found.url)
            size = opened.found.size
            upto = size if bound is None else min(size, bound.upto)
            # bytes that came since the file counted as complete may be half a line
            is_closed = seen.closed and size == seen.found.size
            rest = is_closed if bound is None else bound.takes_rest and upto == size
            start = self.first_record(seen.file, opened, upto)
            step = reach(opened, start, upto, limit, rest, self._max_line)
            # a line that has grown since the horizon was taken is not stuck: the next run will read it
            is_stuck = bound is not None and upto == size and not rest
            if is_stuck and not step.limited and step.end.offset < upto:
                self._warn(seen, step.end.offset, upto)
            if step.end.offset <= seen.file.offset:
                self._fruitless[seen.found.ident] = tried
                return Step(seen.file.offset, upto)
            self._marks[seen.file.number] = step.marks
            return Step(step.end.offset, upto, _after(seen.file, opened, step), step.limited)

    def first_record(self, file: TrackedFile, opened: OpenFile, upto: int) -> Mark:
        """Return where the next record of a file begins: not before the end of its header, if that is before ``upto``.

        A header without its line end stays at the start of the file, and is read like a line.
        """
        if not self._has_header or file.offset:
            return next_line(file, opened)
        return _line_end(opened, Mark(0, 0), upto, self._max_line) or Mark(0, 0)

    def records(self, before: TrackedFile, after: TrackedFile) -> int:
        """Return the number of lines between two states of a file, without its header."""
        return after.line - before.line - (self._has_header and before.offset == 0 < after.offset)

    def pieces(self, first: TrackedFile, last: TrackedFile, opened: OpenFile, share: int) -> list[tuple[Mark, Mark]]:
        """Cut a file's part between lines, into pieces of at least ``share`` bytes but for the last one."""
        low, end = self.first_record(first, opened, last.offset), Mark(last.offset, last.line)
        if self.records(first, last) == 0:
            low = end  # a header without its line end
        # the places between lines that were found while the step was taken, if it was in this process
        marks = self._marks.pop(last.number, None)
        if marks is None and end.offset - low.offset > share:
            marks = list(scan(opened, low, end.offset, self._max_line))
        found: list[tuple[Mark, Mark]] = []
        for mark in marks or []:
            if mark.offset - low.offset >= share and low.offset < mark.offset < end.offset:
                found.append((low, mark))
                low = mark
        return [*found, (low, end)]

    def _warn(self, seen: SeenFile, begin: int, end: int) -> None:
        if (seen.found.ident, begin) not in self._warned:
            self._warned.add((seen.found.ident, begin))
            import structlog  # imported late: read-only commands get here as well, and log nothing

            structlog.get_logger("conduit.file").warning(
                "a last line without its line end is left unread",
                file=seen.found.url,
                bytes=f"{begin} to {end}",
                fix="end the line, or set read-unterminated: true",
            )


def _open(seen: SeenFile) -> OpenFile:
    opened = open_found(seen.found)
    if opened is None:
        raise FileChanged
    now = opened.found
    if now.ident != seen.found.ident or now.size < seen.found.size or not opened.holds(seen.file):
        opened.close()
        raise FileChanged
    return opened


def next_line(file: TrackedFile, opened: OpenFile) -> Mark:
    """Return where the next line begins, skipping the late line end of a line that was read without it."""
    if file.unended and opened.read_at(file.offset, 1) == b"\n":
        return Mark(file.offset + 1, file.line)
    return Mark(file.offset, file.line)


def _after(file: TrackedFile, opened: OpenFile, step: FileReach) -> TrackedFile:
    found, end = opened.found, step.end
    ahead = opened.last_line_end(end.offset)
    return msgspec.structs.replace(
        file,
        offset=end.offset,
        line=end.line,
        mark=opened.mark(end.offset),
        unended=step.unended,
        size=max(found.size, end.offset),
        modified=found.modified,
        changed=found.changed,
        birth=found.birth,
        ahead=ahead if ahead > end.offset else 0,
        ahead_mark=opened.mark(ahead) if ahead > end.offset else "",
    )
