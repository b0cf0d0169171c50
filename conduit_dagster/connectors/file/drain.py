"""Where a run that drains its source stops reading, and which last lines it waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from conduit_dagster.connectors.file.listing import Found, look
from conduit_dagster.connectors.file.opened import open_found
from conduit_dagster.connectors.file.quiet import Quiet
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.file.steps import Bound
from conduit_dagster.connectors.file.survey import Surveyor

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
