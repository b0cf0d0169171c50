"""Stores that are not on this machine's disk: URLs of ``elsewhere://`` and others, kept in this process."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Elsewhere(MemoryFileSystem):
    """Derive with a ``protocol``, ``store`` and ``pseudo_dirs`` of its own for a store that behaves otherwise."""

    protocol = "elsewhere"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix(f"{cls.protocol}:/"))


fsspec.register_implementation("elsewhere", Elsewhere)
