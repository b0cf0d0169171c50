"""Credentials of a store that are replaced or expire while a process runs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from lab.http_server import QuietHandler, serving
from lab.s3_server import NoS3Error, S3Server

from conduit_dagster import storage
from conduit_dagster.connectors.delta.table import DeltaTableLog
from conduit_dagster.recovery.errors import TransientError, from_os_error
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


def _write(path: Path, user: str, secret: str) -> None:
    keys = dict(zip(_KEYS, (user, secret), strict=True))
    lines = [f"{name.lower()} = {value}" for name, value in keys.items()]
    path.write_text("\n".join(["[default]", *lines, ""]))


@pytest.mark.parametrize("access", [storage.size, storage.files, lambda url: storage.open_read(url).read()])
def test_credentials_that_are_replaced_in_their_file_are_used_after_a_refusal(
    s3: S3Server, tmp_path: Path, access: object
) -> None:
    """The client kept those that it had read first: only another process could go on."""
    assert callable(access)
    _write(tmp_path / "credentials", s3.user, s3.secret)
    url = s3.url("a")
    assert storage.put_new(url, b"1")
    with s3.other_secret():
        with pytest.raises(StoreError):
            access(url)
        _write(tmp_path / "credentials", s3.user, s3.secret)
        access(url)
        assert storage.size(url) == 1


@contextmanager
def answering(handler: type[QuietHandler], monkeypatch: pytest.MonkeyPatch, **more: str) -> Generator[None]:
    """Serve a handler in S3's place."""
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        own = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true"}
        regions = dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), "us-east-1")
        for name, value in {**own, **regions, **dict.fromkeys(_KEYS, "x"), **more}.items():
            monkeypatch.setenv(name, value)
        yield


class Expired(QuietHandler):
    """Answers each request as S3 answers one with a session token of yesterday."""

    def respond(self) -> None:
        """Refuse it."""
        self.answer(400, b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>")


class _Renewed(Expired):
    """Knows the user ``new``, and one file."""

    def respond(self) -> None:
        """As S3: the answer to HEAD has no body, and so no reason."""
        if "Credential=new/" in self.headers["Authorization"]:
            self.answer(200, **{"Last-Modified": "Mon, 30 Nov 2026 12:00:00 GMT", "ETag": '"1"'})
        elif self.command == "HEAD":
            self.answer(400)
        else:
            super().respond()


@pytest.mark.parametrize("access", [storage.size, lambda url: storage.open_read(url).close()])
def test_an_expired_token_that_was_renewed_in_its_file_is_used(
    access: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A refusal without a reason was no refusal of the credentials: the client kept them, in every restart."""
    assert callable(access)
    with answering(_Renewed, monkeypatch, AWS_SHARED_CREDENTIALS_FILE=str(tmp_path / "credentials")):
        for name in _KEYS:
            monkeypatch.delenv(name)
        _write(tmp_path / "credentials", "old", "x")
        with pytest.raises(StoreError) as error:
            access("s3://lake/a")
        _write(tmp_path / "credentials", "new", "x")
        access("s3://lake/a")
    ours = from_os_error(error.value, "can't read")
    assert (ours.code, "expired" in ours.message, "clock" in str(ours.fix)) == ("file.no_permission", True, True)


class Failing(QuietHandler):
    """Answers each request with an error that is the store's own."""

    def respond(self) -> None:
        """Refuse it."""
        self.answer(400, b"<Error><Code>KMS.DisabledException</Code><Message>the key is disabled</Message></Error>")


def test_an_error_of_the_store_itself_is_no_error_of_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fix was to see what the system's log says of the disk."""
    with answering(Failing, monkeypatch):
        with pytest.raises(TransientError) as table:
            DeltaTableLog("s3://lake/table").open()
        with pytest.raises(StoreError) as file:
            storage.files("s3://lake/folder")
    for error in (table.value, from_os_error(file.value, "can't read")):
        assert (error.code, "the key is disabled" in error.message) == ("file.error", True)
        assert "the store names" in str(error.fix)


def test_an_expired_token_is_said_for_a_delta_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(Expired, monkeypatch), pytest.raises(TransientError) as error:
        DeltaTableLog("s3://lake/table").open()
    assert error.value.code == "file.no_permission"
    assert error.value.message.endswith("The provided token has expired.")
    assert "AWS_SECRET_ACCESS_KEY" in str(error.value.fix)
