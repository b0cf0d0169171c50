"""How far one step goes in each file, and where a run that drains its source stops."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from conduit_dagster.connectors.file.listing import Found, Tracked, look
from conduit_dagster.connectors.file.opened import FileChanged, OpenFile, open_found
from conduit_dagster.connectors.file.reader import Mark, Readable, nth_end, opened, scan
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.file.survey import Quiet, Seen, Surveyor
from conduit_dagster.sdk import Limit


class Reach(NamedTuple):
    """Where a step ends in a file."""

    end: Mark
    marks: list[Mark]
    """Places between lines on the way, about one per MiB: where the range may be split."""
    limited: bool
    """Whether there are more whole lines, which the limit leaves to a later step."""
    unended: bool
    """Whether the last line has no end."""


def reach(file: Readable, start: Mark, upto: int, limit: Limit, final: bool, max_line: int) -> Reach:
    """As many whole lines as the limit allows, before byte ``upto``; one line where even that is too long.

    ``final``: what follows the last line end is a line as well.
    """
    file, marks = opened(file), list[Mark]()
    for mark in scan(file, start, min(upto, start.offset + limit.bytes), max_line):
        if mark.line - start.line > limit.records:
            last = marks[-1] if marks else start
            return Reach(nth_end(file, last, limit.records - (last.line - start.line)), marks, True, False)
        marks.append(mark)
    marks = marks or _first_line(file, start, upto, max_line)
    end = marks[-1] if marks else start
    if end.offset == upto:
        return Reach(end, marks, False, False)
    if any(scan(file, end, upto, max_line)):
        return Reach(end, marks, True, False)
    full = end.line > start.line and (upto - start.offset > limit.bytes or end.line - start.line >= limit.records)
    if not final or full:
        return Reach(end, marks, final and full, False)
    return Reach(Mark(upto, end.line + 1), marks, False, True)


def _first_line(file: Readable, start: Mark, upto: int, max_line: int) -> list[Mark]:
    """A line longer than a batch is a batch of its own."""
    found = any(scan(file, start, upto, max_line))
    return [nth_end(file, start, 1)] if found else []


_POLL: Final = 0.05
_MOST_WAITS: Final = 10
"""A line that is written to without a pause, and never ended, is waited for so many times at most."""


class Drain:
    """Takes the horizon of a run: how much there is of every file, once half-written lines had time to be ended."""

    def __init__(self, surveyor: Surveyor, settings: FileSourceSettings) -> None:
        self._surveyor, self._settings = surveyor, settings
        self._quiet = Quiet()

    def horizon(self) -> dict[str, Bound]:
        """By file, how much of it is read. Waits only where a file ends in half a line and was changed a moment ago."""
        listed = self._surveyor.files()
        last = listed[-1].ident if listed else ""
        half = [found for found in listed if self._is_half(found, self._wait(found, last))]
        ends = {found.ident: found for found in [*listed, *self._awaited(half, last)]}
        return {ident: Bound(found.size, self._takes_rest(found, last)) for ident, found in ends.items()}

    def _takes_rest(self, found: Found, last: str) -> bool:
        if found.ident == last:
            return self._settings.read_unterminated
        return self._quiet.seconds(found) >= self._settings.rotate_wait

    def _wait(self, found: Found, last: str) -> float:
        return self._settings.unterminated_wait if found.ident == last else self._settings.rotate_wait

    def _is_half(self, found: Found, wait: float) -> bool:
        """Whether its last line has no end, and its writer may still be at it."""
        if not found.size or self._quiet.seconds(found) >= wait:
            return False
        opened = open_found(found)
        if opened is None:
            return False
        with opened:
            return not opened.ends_whole()

    def _awaited(self, half: Iterable[Found], last: str) -> Iterable[Found]:
        """The files as they are when their lines are ended, or were left alone for as long as they may be."""
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

    def _again(self, files: Iterable[Found]) -> dict[str, Found]:
        """The files as they are now, by whatever names; those that are gone are left out."""
        looks = [(found, look(found.url, found.name)) for found in files]
        if all(now is not None and now.ident == found.ident for found, now in looks):
            return {now.ident: now for _, now in looks if now is not None}
        return {found.ident: found for found in self._surveyor.files()}


def _is_ended(found: Found, size: int) -> bool:
    """Whether there is a line end behind the size that it had, or less than that by now."""
    if found.size <= size:
        return found.size < size
    opened = open_found(found)
    if opened is None:
        return False
    with opened:
        return any(b"\n" in piece for piece in opened.chunks(size, found.size - size))


log = structlog.get_logger("conduit.file")


class Bound(NamedTuple):
    """How much of a file a run that drains its source reads."""

    upto: int = 0
    takes_rest: bool = False
    """Whether a last line without its end is a record, if the file still ends there."""


class Step(NamedTuple):
    """What a step reads of a file."""

    done: int
    """Where it is read up to afterwards."""
    upto: int
    """Where it would be read up to if every line were whole and no limit reached."""
    after: Tracked | None = None
    """The file as the position then has it; None where nothing is read."""
    limited: bool = False
    """Whether there are more whole lines, which the limit leaves to a later step."""


class FileSteps:
    """Takes steps in the files of one source. Remembers what it found, so that no byte is scanned in vain."""

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._marks: dict[int, list[Mark]] = {}
        self._fruitless: dict[str, tuple[Any, ...]] = {}
        self._warned: set[tuple[str, int]] = set()

    def take(self, seen: Seen, limit: Limit, bound: Bound | None) -> Step:
        """As many whole lines as the limit allows, up to the bound where there is one.

        Raises ``FileChanged`` where the file is not the one that was seen.
        """
        upto = seen.found.size if bound is None else min(seen.found.size, bound.upto)
        tried = (seen.file.offset, upto, seen.closed, bound, seen.found.modified)
        if upto <= seen.file.offset or self._fruitless.get(seen.found.ident) == tried:
            return Step(seen.file.offset, upto)
        with _open(seen) as opened:
            # from here on every byte, size and mark is this descriptor's
            size = opened.found.size
            upto = size if bound is None else min(size, bound.upto)
            rest = seen.closed if bound is None else bound.takes_rest and upto == size
            start = next_line(seen.file, opened)
            step = reach(opened, start, upto, limit, rest, self._max_line)
            # a line that has grown since the horizon was taken is not stuck: the next run reads it
            is_stuck = bound is not None and upto == size and not rest
            if is_stuck and not step.limited and step.end.offset < upto:
                self._warn(seen, step.end.offset, upto)
            if step.end.offset <= seen.file.offset:
                self._fruitless[seen.found.ident] = tried
                return Step(seen.file.offset, upto)
            self._marks[seen.file.number] = step.marks
            return Step(step.end.offset, upto, _after(seen.file, opened, step), step.limited)

    def pop_marks(self, number: int) -> list[Mark] | None:
        """Places between lines that were found when a step was taken; None where they are not known."""
        return self._marks.pop(number, None)

    def _warn(self, seen: Seen, begin: int, end: int) -> None:
        if (seen.found.ident, begin) not in self._warned:
            self._warned.add((seen.found.ident, begin))
            log.warning(
                "a last line without its line end is left unread",
                file=seen.found.url,
                bytes=f"{begin} to {end}",
                fix="end the line, or set read-unterminated: true",
            )


def _open(seen: Seen) -> OpenFile:
    opened = open_found(seen.found)
    if opened is None:
        raise FileChanged
    now = opened.found
    if now.ident != seen.found.ident or now.size < seen.found.size or not opened.holds(seen.file):
        opened.close()
        raise FileChanged
    return opened


def next_line(file: Tracked, opened: OpenFile) -> Mark:
    """Where the next line begins: behind the end of one that was read without it."""
    if file.unended and opened.read_at(file.offset, 1) == b"\n":
        return Mark(file.offset + 1, file.line)
    return Mark(file.offset, file.line)


def _after(file: Tracked, opened: OpenFile, step: Reach) -> Tracked:
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
