"""Files at an S3 server whose answers are lost: the client sends each again, and is refused by its own file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab.s3_lost_answers import losing_answers
from lab.s3_server import NoS3Error, S3Server

from conduit_dagster import storage
from conduit_dagster.engine.sending import is_first
from conduit_dagster.store_files import FileThereError

pytestmark = pytest.mark.slow
LARGE = 60 * 2**20
"""Bytes of a file that is uploaded in parts."""


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server that does each PUT and POST below ``lost``, and does not answer it at first."""
    s3fs = pytest.importorskip("s3fs")
    try:
        server = S3Server()
    except NoS3Error as error:
        pytest.skip(f"no S3: {error}")
    with server, losing_answers(server.address, _is_lost) as proxy:
        for name, value in {**server.environment, "AWS_ENDPOINT_URL": proxy.address}.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # those of another server
        yield server


def _is_lost(method: str, path: str) -> bool:
    return method in ("PUT", "POST") and "/lost/" in path


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_new_file_whose_answer_was_lost_is_there(s3: S3Server, size: int) -> None:
    """Its name is its own: the refusal, `file.not_folder`, ended the run."""
    url = s3.url("lost", "part")
    with storage.NewFile(url) as file:
        file.write(b"x" * size)
        digest = file.finish()
    assert storage.digest(url) == (size, digest)


def test_the_name_of_another_file_is_refused(s3: S3Server) -> None:
    url = s3.url("part")
    assert storage.put_new(url, b"theirs")
    with storage.NewFile(url) as file, pytest.raises(FileThereError):
        file.write(b"our bytes")
        file.finish()
    assert b"".join(storage.chunks(url)) == b"theirs"


def test_of_two_writers_that_write_one_name_one_creates_the_file(s3: S3Server) -> None:
    """Also where its answer is lost; the same bytes again are its own."""
    for folder in ("any", "lost"):
        made = [storage.put_new(s3.url(folder, "note"), data) for data in (b"1", b"2", b"1")]
        assert made == [True, False, True], folder


def test_the_first_execution_of_a_job_that_sends_once_knows_that_it_is(s3: S3Server) -> None:
    """With at-most-once, it took itself for a repetition: nothing was sent."""
    assert [is_first(s3.url("lost"), "token") for _ in range(2)] == [True, False]
