"""A real S3 server, and connectors for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.s3_lab import S3Lab
from lab.s3_server import NoS3Error, S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs")
    try:
        server = S3Server()
    except NoS3Error as error:
        pytest.skip(f"no S3: {error}")
    with server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, tmp_path: Path) -> S3Lab:
    """A folder of the bucket for one test."""
    return S3Lab(s3_server, tmp_path)
