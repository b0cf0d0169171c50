"""How far one step goes in one file."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import structlog

from conduit_dagster.connectors.file.lines import Mark
from conduit_dagster.connectors.file.opened import FileChanged, OpenFile, open_found
from conduit_dagster.connectors.file.reach import Reach, reach
from conduit_dagster.connectors.file.survey import Seen
from conduit_dagster.connectors.file.tracked import Tracked
from conduit_dagster.sdk import Limit

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
