"""File-like object behind which pyarrow's writers find any other file."""

from __future__ import annotations

import io
from typing import Any, Protocol


class _Appends(Protocol):
    def write(self, data: bytes) -> None: ...


class Sink(io.RawIOBase):
    """File-like object that forwards the bytes of pyarrow's writers."""

    def __init__(self, into: _Appends) -> None:
        super().__init__()
        self._into = into
        self._bytes = 0
        self.discard = False
        """Whether to drop further bytes: an abandoned writer still writes its footer."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Pass bytes on. Errors of the target's ``write`` propagate."""
        if not self.discard:
            self._into.write(data)
        self._bytes += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes received."""
        return self._bytes
