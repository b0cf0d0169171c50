"""Settings of the ``s3`` connector, with Conduit's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import PositiveDuration
from conduit_dagster.sdk import ConnectorSettings

_BUCKET: Final = re.compile(r"[^\s/]+|arn:\S+")
_LABEL: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?|[0-9a-f:.]+")
"""A name, or an address of IPv6: AWS's client takes no other."""
_NO_SPACE: Final = r"^\S*$"


class Login(NamedTuple):
    """A store, and who asks it."""

    region: str
    endpoint: str
    access_key: str
    secret_key: str


class S3Settings(ConnectorSettings):
    """Settings of both ends: the bucket, and the login."""

    model_config = ConfigDict(hide_input_in_errors=True)

    bucket: str = Field(alias="aws.bucket", min_length=1)
    """The bucket. It must exist."""
    access_key: str = Field("", alias="aws.accessKeyId", pattern=_NO_SPACE)
    """The access key. Empty: whatever else AWS's clients look up, such as the environment or a role (ours)."""
    secret_key: str = Field("", alias="aws.secretAccessKey", repr=False, pattern=_NO_SPACE)
    """The secret of ``aws.accessKeyId``."""
    region: str = Field("", alias="aws.region", pattern=_NO_SPACE)
    """The bucket's region. Empty: that of the environment (ours)."""
    endpoint: str = Field("", alias="aws.endpoint", pattern="^(https?://.+)?$")
    """The URL of another store than Amazon's that speaks S3 (ours). Empty: ``AWS_ENDPOINT_URL``, or Amazon's."""

    @property
    def place(self) -> str:
        """The bucket, and the store that it is in."""
        return f"{self.endpoint.rstrip('/')} {self.bucket}"

    @property
    def login(self) -> Login:
        """The settings that a client is made of."""
        return Login(self.region, self.endpoint, self.access_key, self.secret_key)

    @field_validator("bucket")
    @classmethod
    def _one_bucket(cls, bucket: str) -> str:
        if not _BUCKET.fullmatch(bucket):
            raise refuse("this can't be the name of a bucket", fix="give its name alone: a path belongs into prefix")
        return bucket

    @field_validator("endpoint")
    @classmethod
    def _one_store(cls, endpoint: str) -> str:
        """Refuse what AWS's client can't ask, and a login, which would be stored with the address."""
        if endpoint and not _is_store(endpoint):
            fix = (
                "give http or https, a host of letters, digits, dots and hyphens, and its port; the login has settings"
            )
            raise refuse("this can't be the address of a store", fix=f"{fix} of its own")
        return endpoint

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if bool(self.access_key) != bool(self.secret_key):
            raise refuse("aws.accessKeyId and aws.secretAccessKey belong together", fix="give both, or none")
        return self


def _is_store(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    is_known = port != 0 and "@" not in parts.netloc and not re.search(r"\s", url)
    return is_known and _HOST.fullmatch(parts.hostname or "") is not None


class S3SourceSettings(S3Settings):
    """Reads the objects of a bucket, a record each: first those that are there, then each change."""

    prefix: str = ""
    """How the keys of the objects begin. Empty: all objects of the bucket."""
    polling_period: PositiveDuration = Field(1.0, alias="pollingPeriod")
    """How long to wait before the bucket is listed again, at least ten times as long as a listing takes. Each names all
    objects, in a request for each thousand.
    """


class S3DestinationSettings(S3Settings):
    """Writes records into a bucket: the records of a step are one object."""

    idle_keys: ClassVar[Mapping[str, str]] = {
        "sdk.record.format*": "format says how records are written, as in Conduit's connector, which does not read it",
    }

    prefix: str = ""
    """The folder of the objects, without a slash at its end. Empty: the top of the bucket."""
    format: Literal["json", "parquet"]
    """`json`: a line per record; `parquet`: a row per record. Both have Conduit's columns."""

    @property
    def folder(self) -> str:
        """How the keys of the objects begin: the prefix with a slash at its end."""
        return self.prefix if self.prefix.endswith("/") or not self.prefix else f"{self.prefix}/"
