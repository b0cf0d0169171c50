"""Preview of the rows in a destination's files: their number, and a few of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from conduit_dagster.connectors.file.listing import HIDDEN

MOST_FILES: Final = 200
"""Maximum number of files to count rows in: more would take too long."""
_MOST_BYTES: Final = 32 << 20
_TAIL: Final = 1 << 16


def visible_files(path: Path) -> list[str]:
    """Return the files of a folder of parts by name, at most one more than :data:`MOST_FILES`; or the file itself.

    Hidden files are left out.
    """
    if not path.is_dir():
        return [str(path)] if path.is_file() else []
    return list(islice(_below(path), MOST_FILES + 1))


def newest_file(path: Path) -> str | None:
    """Return the last visible file by name, the newest of a folder of parts; None if there are none."""
    if path.is_dir():
        entries = sorted((entry for entry in path.iterdir() if entry.name[0] not in HIDDEN), reverse=True)
        return next((found for entry in entries if (found := newest_file(entry))), None)
    return str(path) if path.is_file() else None


def _below(folder: Path) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name[0] in HIDDEN:
            continue
        if entry.is_dir():
            yield from _below(Path(entry.path))
        else:
            yield entry.path


def count_lines(path: Path) -> int | None:
    """Return the number of lines in all files; None for many files, or for more than 32 MB."""
    files = visible_files(path)
    if len(files) > MOST_FILES or sum(os.path.getsize(file) for file in files) > _MOST_BYTES:  # noqa: PTH202
        return None
    return sum(Path(file).read_bytes().count(b"\n") for file in files)


def last_documents(path: Path, rows: int, whole: bool) -> list[Mapping[str, Any]]:
    """Return the last lines of the newest file that are documents, in order.

    ``whole``: lines are complete records, whose payload is returned.
    """
    newest = newest_file(path)
    if newest is None:
        return []
    with Path(newest).open("rb") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - _TAIL)
        file.seek(begin)
        lines = file.read().split(b"\n")
    # the first line may be cut off at its beginning; the last is empty, or still being written
    complete = lines[1 if begin else 0 : -1]
    found = [_document(line, whole) for line in complete[-rows:]]
    return [document for document in found if document is not None]


def _document(line: bytes, whole: bool) -> dict[str, Any] | None:
    try:
        found: Any = msgspec.json.decode(line)
        found = found["payload"]["after"] if whole else found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    return found if isinstance(found, dict) else None
