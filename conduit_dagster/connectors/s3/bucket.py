"""A bucket: its objects are listed, read and written whole. Every error is a ``ConduitError``."""

from __future__ import annotations

import errno
import hashlib
import os
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, NamedTuple

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session
from s3fs.errors import translate_boto_error

from conduit_dagster.connectors.s3.settings import Login, S3Settings
from conduit_dagster.recovery.errors import TransientError, from_os_error
from conduit_dagster.store_files import store_error

_PIECE: Final = 32 << 20
"""Size of the pieces of a large object in bytes. S3 takes 10,000 of them."""
_THERE: Final = frozenset({"PreconditionFailed", "412"})
_UNKNOWN: Final = "NotImplemented"
"""What a store says that knows no conditions; others without them don't look."""
_ARCHIVED: Final = "InvalidObjectState"
_CLIENT: Final = Config(
    retries={"mode": "standard", "total_max_attempts": 4},
    connect_timeout=10,
    read_timeout=60,
    # a server other than Amazon's may know no newer checksums
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


@lru_cache(maxsize=16)
def client_for(login: Login) -> Any:
    """Return a client. It takes a tenth of a second to make, and may be used by several threads at once."""
    return get_session().create_client(
        "s3",
        region_name=login.region or None,
        endpoint_url=login.endpoint or None,
        aws_access_key_id=login.access_key or None,
        aws_secret_access_key=login.secret_key or None,
        config=_CLIENT,
    )


os.register_at_fork(after_in_child=client_for.cache_clear)  # connections are not for two processes


class FoundObject(NamedTuple):
    """An object as a listing shows it."""

    key: str
    etag: str
    modified: int
    """When it was written, in milliseconds since 1970; of an upload in parts, when that began."""
    size: int


class ReadObject(NamedTuple):
    """An object's content, and what is stored with it."""

    data: bytes
    content_type: str
    metadata: Mapping[str, str]


class Bucket:
    """One bucket. May be used by several threads at once."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings, self.name = settings, settings.bucket
        self.url = f"s3://{settings.bucket}"

    @contextmanager
    def _mapped(self, doing: str, key: str = "") -> Generator[Any]:
        """Yield the client. Raises ``TransientError`` for errors inside: buckets and rights may come back."""
        url = f"{self.url}/{key}" if key else self.url
        try:
            yield self._client(f"can't {doing} {url}")
        except (BotoCoreError, ClientError) as error:
            client_for.cache_clear()  # credentials are looked up again: they may be rotated
            found = self._explained(store_error(translate_boto_error(error), url), f"can't {doing} {url}")
            if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") == _ARCHIVED:
                found.fix = "restore the object, which is in an archive such as Glacier; or set prefix to leave it out"
            raise found from error

    def _client(self, doing: str) -> Any:
        try:
            return client_for(self._settings.login)
        except ValueError as error:  # no error of the client's own; settings are checked, the environment is not
            found = from_os_error(store_error(error, self.url), doing)
            found.fix = "correct AWS_ENDPOINT_URL and AWS_DEFAULT_REGION, or set aws.endpoint and aws.region"
            raise found from error

    def _explained(self, error: OSError, doing: str) -> TransientError:
        """Return the error with the settings to look at, where they are set."""
        found = from_os_error(error, doing)
        if error.errno == errno.EACCES and self._settings.access_key:
            found.fix = "check aws.accessKeyId and aws.secretAccessKey, what they may do, and the machine's clock"
        if error.errno == errno.EHOSTUNREACH and self._settings.endpoint:
            found.fix = "check that it runs, and aws.endpoint"
        return found

    def check(self) -> None:
        """Raise if the bucket can't be listed."""
        with self._mapped("list") as client:
            client.list_objects_v2(Bucket=self.name, MaxKeys=1)

    def objects(self, prefix: str) -> Iterator[FoundObject]:
        """Yield the objects whose keys begin with ``prefix``, by key."""
        with self._mapped("list") as client:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix):
                for one in page.get("Contents", ()):
                    at = int(one["LastModified"].timestamp() * 1000)
                    yield FoundObject(one["Key"], one["ETag"].strip('"'), at, one["Size"])

    def read(self, key: str) -> ReadObject | None:
        """Return an object; None if it is gone."""
        with self._mapped("read", key) as client:
            try:
                found = client.get_object(Bucket=self.name, Key=key)
            except client.exceptions.NoSuchKey:
                return None
            return ReadObject(found["Body"].read(), found.get("ContentType", ""), found.get("Metadata", {}))

    def marks(self, key: str) -> Mapping[str, str] | None:
        """Return the metadata of an object; None if there is no such object."""
        with self._mapped("look for", key) as client:
            try:
                found = client.head_object(Bucket=self.name, Key=key)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") == "404":
                    return None
                raise
            return found.get("Metadata", {})

    def put(self, key: str, data: Iterable[bytes], options: Mapping[str, Any], is_new: bool = False) -> bool:
        """Write an object: all of it becomes visible at once, in place of one with its key.

        ``options``: those of S3's request; ``is_new``: whether one with its key stays instead. Returns False if it did.
        """
        pieces = _pieces(data)
        first = next(pieces, b"")
        second = next(pieces, None)
        named = {"Bucket": self.name, "Key": key}
        with self._mapped("write", key) as client:
            if second is None:
                return _finished(partial(client.put_object, **named, **_body(first), **options), is_new)
            upload = {**named, "UploadId": client.create_multipart_upload(**named, **options)["UploadId"]}
            is_written = False
            try:
                parts = [
                    {
                        "PartNumber": number,
                        "ETag": client.upload_part(**upload, PartNumber=number, **_body(piece))["ETag"],
                    }
                    for number, piece in enumerate(chain((first, second), pieces), 1)
                ]
                finish = partial(client.complete_multipart_upload, **upload, MultipartUpload={"Parts": parts})
                is_written = _finished(finish, is_new)
            finally:
                if not is_written:
                    with suppress(BotoCoreError, ClientError):
                        client.abort_multipart_upload(**upload)
            return is_written


def _finished(request: Callable[..., Any], is_new: bool) -> bool:
    """Send the request that makes an object visible; return False if there is one and it is to stay."""
    if is_new:
        try:
            request(IfNoneMatch="*")
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            if code in _THERE:
                return False
            if code != _UNKNOWN:
                raise
        else:
            return True
    request()
    return True


def _body(data: bytes) -> dict[str, Any]:
    """Return a request's body with its hash, without which S3 refuses it for a bucket with a default retention."""
    return {"Body": data, "ContentMD5": b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()}


def _pieces(data: Iterable[bytes]) -> Iterator[bytes]:
    waiting = bytearray()
    for one in data:
        waiting += one
        while len(waiting) >= _PIECE:
            yield bytes(waiting[:_PIECE])
            del waiting[:_PIECE]
    if waiting:
        yield bytes(waiting)
