"""How far one step may read in one file."""

from __future__ import annotations

from typing import NamedTuple

from conduit_dagster.connectors.file.lines import Mark, Readable, nth_end, opened, scan
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
