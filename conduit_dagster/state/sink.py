"""A new file as pyarrow writes it."""

from __future__ import annotations

import io
from typing import Any, Protocol


class _Appends(Protocol):
    def write(self, data: bytes) -> None: ...


class Sink(io.RawIOBase):
    """Passes on what pyarrow's writers give it."""

    def __init__(self, into: _Appends) -> None:
        super().__init__()
        self._into = into
        self._bytes = 0
        self.discard = False
        """What comes from here on is of no use: a writer that is given up still writes its footer."""

    def writable(self) -> bool:
        """It is for nothing else."""
        return True

    def write(self, data: Any, /) -> int:
        """Passes them on. Raises what that raises."""
        if not self.discard:
            self._into.write(data)
        self._bytes += len(data)
        return len(data)

    def tell(self) -> int:
        """How many bytes came."""
        return self._bytes
