"""Credentials of a store that are replaced or expire while a process runs."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from lab.http_server import QuietHandler, serving
from lab.s3_server import NoS3Error, S3Server

from conduit_dagster import storage
from conduit_dagster.connectors.delta.table import DeltaTableLog
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.store_files import StoreError

pytestmark = pytest.mark.slow
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    """A server whose credentials a file has."""
    s3fs = pytest.importorskip("s3fs")
    try:
        server = S3Server()
    except NoS3Error as error:
        pytest.skip(f"no S3: {error}")
    with server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for name in _KEYS:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        s3fs.S3FileSystem.clear_instance_cache()  # those of another server
        yield server


def _write(path: Path, server: S3Server) -> None:
    keys = dict(zip(_KEYS, (server.user, server.secret), strict=True))
    lines = [f"{name.lower()} = {value}" for name, value in keys.items()]
    path.write_text("\n".join(["[default]", *lines, ""]))


@pytest.mark.parametrize("access", [storage.size, storage.files, lambda url: storage.open_read(url).read()])
def test_credentials_that_are_replaced_in_their_file_are_used_after_a_refusal(
    s3: S3Server, tmp_path: Path, access: object
) -> None:
    """The client kept those that it had read first: only another process could go on."""
    assert callable(access)
    _write(tmp_path / "credentials", s3)
    url = s3.url("a")
    assert storage.put_new(url, b"1")
    with s3.other_secret():
        with pytest.raises(StoreError):
            access(url)
        _write(tmp_path / "credentials", s3)
        access(url)
        assert storage.size(url) == 1


class Expired(QuietHandler):
    """Answers each request as S3 answers one with a session token of yesterday."""

    def respond(self) -> None:
        """Refuse it."""
        self.answer(400, b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>")


def test_an_expired_token_is_said_for_a_delta_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Expired)) as server:
        own = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true"}
        for name, value in {**own, "AWS_REGION": "us-east-1", **dict.fromkeys(_KEYS, "x")}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(TransientError) as error:
            DeltaTableLog("s3://lake/table").open()
    assert error.value.code == "file.no_permission"
    assert error.value.message.endswith("The provided token has expired.")
    assert "AWS_SECRET_ACCESS_KEY" in str(error.value.fix)
