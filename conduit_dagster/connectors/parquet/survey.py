"""The Parquet files that there are, and what of each was read."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from conduit_dagster.connectors.file.listing import Found
from conduit_dagster.connectors.parquet.footer import Footer, read_footer
from conduit_dagster.connectors.parquet.position import ParquetPosition, ReadFile
from conduit_dagster.recovery.errors import FatalError, from_os_error

_KEPT = 10_000
"""Footers that are remembered."""


class Listing(Protocol):
    """Where the files are named."""

    ordered: bool
    """Whether every file that comes has a name behind all others': what was read is then told by the last name."""

    def files(self) -> list[Found]:
        """All there are now, in reading order. May raise ``OSError`` or an error of ours."""
        ...


class Seen(NamedTuple):
    """A file that has rows to read."""

    file: ReadFile
    url: str
    footer: Footer


class Survey:
    """Looks at the files of one source. Reads a footer once per file."""

    def __init__(self, listing: Listing, place: str) -> None:
        """``place``: where they lie, for people."""
        self._listing, self._place = listing, place
        self._footers: dict[Found, Footer] = {}

    def files(self) -> list[tuple[Found, Footer]]:
        """All files there are now, in reading order. Raises where one of them can't be read."""
        try:
            return [(found, self._footer(found)) for found in self._listing.files()]
        except OSError as error:
            raise from_os_error(error, f"can't read {self._place}") from error

    def _footer(self, found: Found) -> Footer:
        if found not in self._footers:
            if len(self._footers) >= _KEPT:
                self._footers.clear()
            self._footers[found] = read_footer(found.url)
        return self._footers[found]

    def unread(self, position: ParquetPosition) -> list[Seen]:
        """Files with rows that lie behind the position: those begun first, then new ones by name.

        Raises ``FatalError`` where a file that was begun is gone, or is another one now.
        """
        known = {file.ident: file for file in position.files}
        there = {(found.name, footer.mark): (found, footer) for found, footer in self.files()}
        for file in position.files:
            if file.done < file.rows and file.ident not in there:
                raise self.gone(file)
        last = position.files[-1].name if self._listing.ordered and position.files else ""
        fresh = [ident for ident in there if ident not in known and ident[0] > last]
        new = [ReadFile(*ident, position.seen + i, there[ident][1].rows) for i, ident in enumerate(fresh)]
        files = [*(file for file in position.files if file.done < file.rows), *new]
        return [Seen(file, there[file.ident][0].url, there[file.ident][1]) for file in files]

    def gone(self, file: ReadFile) -> FatalError:
        """Its rows are not there any more."""
        return FatalError(
            f"{file.name} is gone or was changed; rows {file.done + 1} to {file.rows} of it were not read",
            code="parquet.range_gone",
            place=self._place,
            fix="put the file back under its name, with the content that it had",
        )

    def still(self, position: ParquetPosition) -> ParquetPosition:
        """The position without files that need not be named any more: read whole, and gone or behind another one."""
        if self._listing.ordered:
            return ParquetPosition(position.seen, position.files[-1:])
        there = {(found.name, footer.mark) for found, footer in self.files()}
        kept = tuple(file for file in position.files if file.ident in there or file.done < file.rows)
        return ParquetPosition(position.seen, kept)
