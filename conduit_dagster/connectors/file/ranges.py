"""Ranges of positions as ranges of bytes in files."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from conduit_dagster.connectors.file.lines import Mark
from conduit_dagster.connectors.file.opened import OpenFile
from conduit_dagster.connectors.file.tracked import FilePosition, Tracked
from conduit_dagster.sdk import Split


def moved(start: FilePosition, end: FilePosition) -> Iterator[tuple[Tracked, Tracked]]:
    """Each file of which the range holds something, at its start and at its end, in reading order."""
    before = {file.number: file for file in start.files}
    for last in end.files:
        first = before.get(last.number) or Tracked(last.name, last.number, last.inode)
        if last.offset > first.offset:
            # where its range ends it was seen later: a look at it from now on is compared with that
            seen = {"birth": last.birth, "modified": last.modified, "changed": last.changed}
            yield msgspec.structs.replace(first, **seen), last


def cut_at(cut: Tracked, last: Tracked) -> Tracked:
    """A file at a boundary inside its range, with what was seen of it at the range's end."""
    is_behind = bool(last.ahead)
    return msgspec.structs.replace(
        cut,
        unended=last.unended and cut.offset == last.offset,
        size=last.size,
        modified=last.modified,
        changed=last.changed,
        birth=last.birth,
        ahead=last.ahead if is_behind else last.offset,
        ahead_mark=last.ahead_mark if is_behind else last.mark,
    )


def split_of(first: Tracked, opened: OpenFile, low: Mark, high: Mark, ordinal: int) -> Split:
    """A part of a file's range. Raises ``FileChanged`` where the file was cut off while it was looked at."""
    mark = opened.mark(low.offset) if low.offset != first.offset else first.mark
    start = msgspec.structs.replace(first, offset=low.offset, line=low.line, mark=mark)
    detail = {"url": opened.url, "from": list(low), "to": high.offset}
    return Split(msgspec.structs.asdict(start), ordinal, high.line - low.line, high.offset - low.offset, detail)
