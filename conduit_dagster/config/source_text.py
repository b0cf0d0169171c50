"""Text of a file: reading within limits, lines and columns, YAML documents."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from conduit_dagster.config.findings import Finding
from conduit_dagster.lazy_property import lazy_property

MAX_BYTES = 10 * 1024 * 1024
"""Files beyond this size are not pipeline files; parsing them as YAML would take minutes."""

# YAML ends a document here even inside a block scalar, so a bad one can be cut out without parsing
_MARKER = re.compile(r"^(?:---|\.\.\.)(?=\s|$)", re.MULTILINE)
_SILENT_LINE = re.compile(r"\s*(#.*)?|%.*")


@dataclass(frozen=True)
class Chunk:
    """One YAML document as text, and its start in the file."""

    text: str
    start: int


@dataclass(frozen=True)
class ConfigText:
    """Name and text of a file. Line ends are ``\\n``."""

    file: str
    text: str

    @lazy_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def position(self, index: int) -> tuple[int, int]:
        """Return line and column, both from 1, of the character at an index."""
        line = bisect_right(self._line_starts, index)
        return line, index - self._line_starts[line - 1] + 1

    def chunks(self) -> list[Chunk]:
        """Return the YAML documents, cut at their markers; those without content are left out."""
        cuts = [0, *(match.start() for match in _MARKER.finditer(self.text)), len(self.text)]
        chunks: list[Chunk] = []
        start = 0
        for begin, end in itertools.pairwise(cuts):
            after = begin + 3 if self.text.startswith("...", begin) else begin
            start = after if start == begin else start
            # comments and directives before a marker belong to the document after it
            if not _is_silent(self.text[after:end]):
                chunks.append(Chunk(self.text[start:end], start))
                start = end
        return [chunk for chunk in chunks if not _is_blank(chunk.text)]


def source_of(text: str, file: str) -> ConfigText:
    """Return a text without its byte order mark, and with line ends ``\\n``."""
    return ConfigText(file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))


def read_source(path: Path, file: str) -> ConfigText | Finding:
    """Read a file, or return a finding if that fails. Never reads beyond the limit: a device must not hang it."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        return too_large(file) if len(data) > MAX_BYTES else source_of(data.decode("utf-8"), file)
    except UnicodeDecodeError as error:
        return unreadable(file, f"the file is not UTF-8: byte {error.start} cannot be read", "save it as UTF-8")
    except IsADirectoryError:
        return unreadable(file, "a folder, not a file", "name a file in it")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return unreadable(file, f"the file cannot be read: {reason}", "check the path and its permissions")


def unreadable(file: str, message: str, fix: str) -> Finding:
    """Return the finding for an unreadable file."""
    return Finding("config.file_unreadable", "error", file, 1, 1, "", message, fix=fix)


def too_large(file: str) -> Finding:
    """Return the finding for a file beyond the limit."""
    message = f"the file is larger than {MAX_BYTES // 1024 // 1024} MB"
    return Finding("config.file_too_large", "error", file, 1, 1, "", message, fix="split it into several files")


def _is_silent(text: str) -> bool:
    """Return whether a piece holds only comments, directives and blank lines, and opens no document."""
    return all(_SILENT_LINE.fullmatch(line) for line in text.split("\n"))


def _is_blank(text: str) -> bool:
    return _is_silent(re.sub(r"^---(?=\s|$)", "", text, flags=re.MULTILINE))
