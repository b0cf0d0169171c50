"""A store whose every request fails, as the clients of object stores fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class EndpointConnectionError(Exception):
    """As S3's client raises it: not an ``OSError``."""


class NoCredentialsError(Exception):
    """Likewise."""


class _FailingStore(MemoryFileSystem):
    protocol = "failing"
    error: ClassVar[Exception] = EndpointConnectionError()

    def _fail(self, *_: Any, **__: Any) -> NoReturn:
        raise self.error

    info = ls = open = rm = rm_file = cp_file = mv = exists = makedirs = _fail


@contextmanager
def failing_store(error: Exception) -> Iterator[str]:
    """Yield the URL of a folder in a store that answers everything with this error."""
    fsspec.register_implementation("failing", _FailingStore, clobber=True)
    _FailingStore.error = error
    yield "failing://user:hunter2-secret@bucket/folder"
