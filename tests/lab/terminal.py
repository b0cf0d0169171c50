"""The terminal of a command."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable


class Terminal:
    """Output of a command on its terminal, without escapes."""

    def __init__(self, outer: int) -> None:
        """``outer``: the end of the pseudo terminal that the command does not have."""
        self._outer, self._text = outer, ""

    @property
    def shown(self) -> str:
        """All output so far."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._text)

    def read(self, enough: Callable[[str], object] = lambda _: False, seconds: float = 150) -> str:
        """Read until it has shown enough, or the command has ended; return all output so far."""
        deadline = time.monotonic() + seconds
        while not enough(self.shown) and time.monotonic() < deadline:
            if not select.select([self._outer], [], [], 1)[0]:
                continue
            try:
                data = os.read(self._outer, 65536)
            except OSError:  # no process has the terminal open any more
                break
            if not data:
                break
            self._text += data.decode(errors="replace")
        return self.shown
