"""The conformance suites of sources and destinations, with a real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab.conformance_runs import Make
from lab.s3_lab import S3Lab
from lab.s3_mock import S3Mock
from lab.s3_server import S3Server

from conduit_dagster.testing.conformance import DestinationConformance, SourceConformance


class TestS3Source(SourceConformance):
    @pytest.fixture(scope="class")
    def make(self, s3_server: S3Server | S3Mock, tmp_path_factory: pytest.TempPathFactory) -> Make:
        s3 = S3Lab(s3_server, tmp_path_factory.mktemp("source"))
        for number in range(24):
            s3.put(f"{number:02}", b"%d" % number, ContentType="text/plain", Metadata={"n": str(number)})
        return s3.source


@pytest.mark.parametrize("kind", ["json", "parquet"])
class TestS3Destination(DestinationConformance):
    @pytest.fixture
    def make(self, s3: S3Lab, kind: str) -> Make:
        return lambda: s3.destination(kind)

    @pytest.fixture
    def delivered(self, s3: S3Lab, kind: str) -> Callable[[], list[int]]:
        return s3.numbers
