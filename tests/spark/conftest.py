"""A folder for the sockets of Spark's workers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """The path of a socket has at most 107 bytes; that of a test's own folder may be longer."""
    with tempfile.TemporaryDirectory(prefix="conduit-") as folder:
        yield Path(folder)
