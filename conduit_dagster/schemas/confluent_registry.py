"""A schema registry with Confluent's HTTP API."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec
import urllib3
from typing_extensions import override
from urllib3.util import Retry, Timeout

from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.schemas.schema_registry import RefusedSchemaError, Schema, UnknownSchemaError
from conduit_dagster.timed_responses import TimedPoolManager

_TYPE = "application/vnd.schemaregistry.v1+json"
_SECONDS = 10.0
_LONGEST_PAUSE: Final = 3.0
"""Seconds. A registry that asks for a longer pause is an outage, and the step is repeated."""
_SHOWN: Final = 200
_BUSY: Final = (408, 425, 429)
_LOGIN: Final = (401, 403, 407)
_NOT_TAKEN: Final = (409, 422)
"""An incompatible schema, and an invalid one: other records of the subject may have schemas that it takes."""
_UNKNOWN: Final = range(40401, 40500)
"""Codes of the API for an unknown subject, version or schema; a URL that does not exist has none of them."""


class _Text(msgspec.Struct):
    schema: str
    kind: str = msgspec.field(default="AVRO", name="schemaType")
    references: list[Any] = []
    """The schemas that it names without containing them."""


class _Number(msgspec.Struct):
    id: int


class _Version(_Text, kw_only=True):
    id: int


class _Failure(msgspec.Struct):
    error_code: int = 0
    message: str = ""


learn(_Text, _Number, _Version, _Failure)
_AnswerT = TypeVar("_AnswerT", _Text, _Number, _Version)


class _Repeats(Retry):
    """Repetition of requests whose pause lasts some seconds at most, whatever an answer's ``Retry-After`` says: a task
    would be silent for hours."""

    @override
    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        """Return the seconds of the pause that the answer asks for."""
        wanted = super().get_retry_after(response)
        return None if wanted is None else min(wanted, _LONGEST_PAUSE)


class Access(NamedTuple):
    """Credentials and certificates for a registry."""

    username: str = ""
    password: str = ""
    ca: str = ""
    """PEM file, as are ``certificate`` and ``key``."""
    certificate: str = ""
    key: str = ""


class ConfluentRegistry:
    """Registry with Confluent's HTTP API. Thread-safe."""

    def __init__(self, url: str, access: Access) -> None:
        parts = urlsplit(url)
        # a URL may contain the login; no message may
        username = access.username or unquote(parts.username or "")
        password = access.password or unquote(parts.password or "")
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
        self._headers = {"Accept": _TYPE, "Content-Type": _TYPE}
        if username:
            self._headers["Authorization"] = f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"
        self._access = access

    @lazy_property
    def _pool(self) -> TimedPoolManager:
        return TimedPoolManager(
            ssl_context=_tls(self._access) if self._url.startswith("https:") else None,
            retries=_Repeats(total=2, backoff_factor=0.1),
            timeout=Timeout(total=_SECONDS),
        )

    def by_id(self, number: int) -> Schema:
        """Return the schema with this number, with those that it refers to within it.

        Raises :class:`UnknownSchemaError`, also if it is none of Avro.
        """
        found = self._ask("GET", f"/schemas/ids/{number}", _Text)
        if found.kind != "AVRO":
            raise UnknownSchemaError(f"the registry's schema {number} is of the type {found.kind}, not of Avro")
        if found.references:
            found = self._ask("GET", f"/schemas/ids/{number}?format=resolved", _Text)
        return Schema(number, found.schema)

    def by_subject(self, subject: str, version: int) -> Schema:
        """Return a version of a subject's schema. Raises :class:`UnknownSchemaError`."""
        found = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}", _Version)
        is_whole = found.kind == "AVRO" and not found.references
        return Schema(found.id, found.schema) if is_whole else self.by_id(found.id)

    def register(self, subject: str, text: str) -> Schema:
        """Return the schema under this subject, registering it as the newest version if it is new.

        Raises :class:`RefusedSchemaError` if the registry does not take it.
        """
        found = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", _Number, {"schema": text})
        return Schema(found.id, text)

    def _ask(self, method: str, path: str, kind: type[_AnswerT], body: Mapping[str, Any] | None = None) -> _AnswerT:
        try:
            answer = self._pool.request(method, self._url + path, json=body, headers=self._headers)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(_cause(error)) from error
        if answer.status >= 300:
            raise self._refusal(answer, path)
        try:
            return msgspec.json.decode(answer.data, type=kind)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise self._foreign(answer) from error

    def _refusal(self, answer: urllib3.BaseHTTPResponse, path: str) -> Exception:
        """Return the error for an answer of 300 or more: about the schema only if the registry itself says so."""
        if answer.status >= 500 or answer.status in _BUSY:
            return self._unreachable(f"it answered {answer.status}")
        said = _as_failure(answer.data)
        if answer.status == 404:
            return (
                UnknownSchemaError(f"the registry has nothing at {path}")
                if said.error_code in _UNKNOWN
                else self._foreign(answer)
            )
        if not said.message and answer.status not in _LOGIN:
            return self._foreign(answer)
        if answer.status in _NOT_TAKEN:
            return RefusedSchemaError(f"the registry does not take the schema: {answer.status} {_excerpt(answer)}")
        return FatalError(
            f"the schema registry refuses: {answer.status} {_excerpt(answer)}",
            code="schemas.refused",
            place=self._url + path,
            fix="check the login and its rights on the subject",
        )

    def _foreign(self, answer: urllib3.BaseHTTPResponse) -> TransientError:
        return self._unreachable(
            f"an answer of {answer.status} is not in its API: {_excerpt(answer)}",
            "check the url, and the proxy before it",
        )

    def _unreachable(self, reason: str, fix: str = "check that it is running") -> TransientError:
        return TransientError(
            f"the schema registry can't be reached: {reason}", code="schemas.unreachable", place=self._url, fix=fix
        )


def _tls(access: Access) -> ssl.SSLContext:
    """Return the TLS settings. Raises ``FatalError`` (``schemas.certificate``) for a file that can't be used."""
    path = access.ca
    try:
        context = ssl.create_default_context(cafile=path or None)
        for path in filter(None, (access.key, access.certificate)):
            Path(path).open("rb").close()  # OpenSSL does not name the missing one of the two
        if access.certificate:
            context.load_cert_chain(access.certificate, access.key, password=_no_password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FatalError(
            f"the certificate file {path} can't be used: {reason}",
            code="schemas.certificate",
            place=path,
            fix="give PEM files by tls.ca.cert, tls.client.cert and its key without a password, tls.client.key; "
            "relative paths start at the project's folder",
        ) from error
    return context


def _no_password() -> str:
    """Answer in place of the terminal, which OpenSSL asks for the password of an encrypted key."""
    return ""


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _as_failure(data: bytes) -> _Failure:
    try:
        return msgspec.json.decode(data, type=_Failure)
    except (msgspec.DecodeError, UnicodeError):
        return _Failure()


def _excerpt(answer: urllib3.BaseHTTPResponse) -> str:
    return answer.data[:_SHOWN].decode("utf-8", "replace")
