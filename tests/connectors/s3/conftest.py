"""A real S3 server, and connectors for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.maven_jars import NoJarsError
from lab.s3_lab import S3Lab
from lab.s3_mock import S3Mock
from lab.s3_server import NoS3Error, S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server | S3Mock]:
    """``CONDUIT_S3=mock`` takes the one that is had everywhere."""
    pytest.importorskip("s3fs")
    with _server() as server:
        yield server


def _server() -> S3Server | S3Mock:
    try:
        if os.environ.get("CONDUIT_S3") != "mock":
            return S3Server()
    except NoS3Error:
        pass
    try:
        return S3Mock()
    except NoJarsError as error:
        pytest.skip(f"no S3: {error}")


@pytest.fixture
def s3(s3_server: S3Server | S3Mock, tmp_path: Path) -> S3Lab:
    """A folder of the bucket for one test."""
    return S3Lab(s3_server, tmp_path)
