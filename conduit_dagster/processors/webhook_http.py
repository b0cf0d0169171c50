"""``webhook.http``: send an HTTP request for each record."""

from __future__ import annotations

import base64
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit, urlunsplit

import urllib3
from pydantic import AfterValidator, ConfigDict, Field, model_validator
from typing_extensions import override
from urllib3.util import Retry, Timeout

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import ByteSize, Duration, PositiveDuration
from conduit_dagster.expressions import Compiled, compile_template, reads_key
from conduit_dagster.field_reference import FieldError, Reference
from conduit_dagster.processors.common.in_place import parts_of, put_back
from conduit_dagster.processors.common.setting_kinds import ChangeableField, ConduitSettings, Template, failure
from conduit_dagster.public_network import connect_public
from conduit_dagster.sdk import ProcessError, Processor, ProcessorContext, Record, Result
from conduit_dagster.timed_responses import TimedHTTP, TimedHTTPS, TimedPoolManager

_HEADERS = "headers."
_CONTENT_TYPE = "content-type"
_SHOWN = 200
_PIECE = 1 << 16
_SCHEMES = ("http", "https")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SHORTEST, _LONGEST = 0.1, 10.0
"""Waits in seconds that replace 0, as in Conduit."""
_MOST_REQUESTS = 10
"""Go's limit of requests for one record, redirects included."""


def _url(text: str) -> str:
    if text.startswith("{{"):
        return text  # only known once a record is processed
    parts = urlsplit(text.partition("{{")[0])
    if parts.scheme not in _SCHEMES or not (parts.netloc or "{{" in text):
        # without the text: such URLs hold secrets, in their path too
        raise refuse("this is not a URL", fix="http://HOST/PATH or https://HOST/PATH", column=0)
    return text


class WebhookHttpSettings(ConduitSettings):
    """Settings of ``webhook.http``; ``headers.NAME`` for each header."""

    model_config = ConfigDict(extra="allow")
    open_keys: ClassVar[tuple[str, ...]] = (f"{_HEADERS}*",)

    url: Annotated[Template, AfterValidator(_url)] = Field(alias="request.url")
    """The URL, or a Go template over the record that gives it."""
    method: str = Field("GET", alias="request.method", pattern="^[A-Za-z]+$")
    """The method of the request."""
    body: Template = Field("", alias="request.body")
    """The body: a text, or a Go template over the record; `{{ toJson . }}` is the whole record."""
    content_type: str = Field("", alias="request.contentType")
    """Old for `headers.Content-Type`."""
    timeout: PositiveDuration = Field(30.0, alias="request.timeout")
    """How long one request may take, until its response is complete (ours)."""
    allow_private: bool = Field(True, alias="request.allowPrivate")
    """Whether a request may go to a private network (ours). `false`: a host without a public address is refused when it
    is connected to, also after a redirect.
    """
    concurrency: int = Field(1, alias="request.concurrency", ge=1, le=256)
    """Requests at the same time in one task (ours). The records keep their order; with more than 1 the requests do not.
    """
    response_body: ChangeableField = Field(".Payload.After", alias="response.body")
    """The field that takes the response's body: a payload or the key as raw data, another field as text."""
    response_status: ChangeableField | None = Field(None, alias="response.status")
    """The field that takes the status; without it, none does."""
    max_size: ByteSize = Field(64_000_000, alias="response.maxSize")
    """How long a response may be (ours); a longer one is an error. A task holds those of a whole block."""
    retries: float = Field(0, alias="backoffRetry.count", gt=-1)
    """How often to try again after an error."""
    factor: float = Field(2, alias="backoffRetry.factor", gt=0)
    """The factor by which each wait is longer than the one before."""
    shortest: Duration = Field(0.1, alias="backoffRetry.min")
    """The first wait."""
    longest: Duration = Field(5.0, alias="backoffRetry.max")
    """The longest wait."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.response_body == self.response_status:
            message = "response.body and response.status are the same field"
            raise refuse(message, fix="take two fields", at="response.status")
        if self.content_type and any(name.lower() == _CONTENT_TYPE for name in self.below(_HEADERS)):
            message = "request.contentType and headers.Content-Type are given"
            raise refuse(message, fix="remove the first", at="request.contentType")
        for name, value in {**self.below(_HEADERS), "Content-Type": self.content_type}.items():
            # without the value, which may be a secret
            if not _HEADER_NAME.fullmatch(name):
                raise refuse("this is no name of a header", fix="letters, digits and dashes", at=f"{_HEADERS}{name}")
            if _CONTROL.search(value):
                message = f"the header {name} has a line end or another control character"
                raise refuse(message, fix="give it in one line", at=f"{_HEADERS}{name}")
        return self

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        given = self.below(_HEADERS)
        if any(name.lower() == _CONTENT_TYPE for name in given):
            return given
        return {**given, "Content-Type": self.content_type or "application/json"}


class WebhookHttp(Processor):
    """Send an HTTP request for each record, and put the response into the record.

    No response, or a status of 500 or more, is an error: the request is retried ``backoffRetry.count`` times,
    then the record is nacked. Any other status counts as a response. At most nine redirects are followed: after
    301, 302 and 303 with `GET` and without the body, and to another host without login and cookies. A repeated step
    sends its requests again.
    """

    name = "webhook.http"
    Settings = WebhookHttpSettings
    settings: WebhookHttpSettings
    shares_records = True
    deterministic = False

    def __init__(self, settings: WebhookHttpSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._url, self._body = compile_template(settings.url), compile_template(settings.body)
        self._into = Reference.parse(settings.response_body)
        self._status = None if settings.response_status is None else Reference.parse(settings.response_status)
        # as UTF-8, as in Conduit: the library takes text for Latin-1
        self._headers = {name: value.encode().decode("latin-1") for name, value in settings.headers.items()}
        self._pool = TimedPoolManager(
            maxsize=settings.concurrency,
            retries=Retry(None, connect=0, read=0, other=0, status=0),
            timeout=Timeout(total=settings.timeout),
        )
        if not settings.allow_private:
            pools: Any = {"http": _PublicHTTPPool, "https": _PublicHTTPSPool}
            self._pool.pool_classes_by_scheme = pools

    @property
    @override
    def reads_key(self) -> bool:
        fields = {field.root for field in (self._into, self._status) if field is not None}
        return reads_key(self._url.names | self._body.names | fields)

    @override
    def _each(self, records: list[Record]) -> list[Result]:
        if self.settings.concurrency == 1 or len(records) == 1:
            return super()._each(records)
        with ThreadPoolExecutor(self.settings.concurrency) as threads:
            return list(threads.map(self._one, records))

    @override
    def process(self, record: Record) -> Record:
        url, body = _templated(self._url, record, "request.url"), _templated(self._body, record, "request.body")
        if self._url.literal is None:
            url = _normal(url)
        status, answer = self._persistently(lambda: self._sent(url, body))
        parts = parts_of(record)
        try:
            self._into.set(record, answer if self._into.holds_data else answer.decode("utf-8", "replace"))
            if self._status is not None:
                self._status.set(record, str(status))
        except FieldError:
            put_back(record, parts)
            raise
        return record

    def _persistently(self, send: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
        tries, waits = 0, backoff_waits(self.settings)
        while True:
            try:
                return send()
            except ProcessError:
                if tries >= self.settings.retries:
                    raise
            time.sleep(next(waits))
            tries += 1

    def _followed(self, method: str, url: str, body: bytes | None) -> tuple[int, bytes]:
        """Send the request and follow redirects as Go does: after a 301, 302 or 303 with GET and no body."""
        headers = self._headers
        for _ in range(_MOST_REQUESTS):
            if urlsplit(url).scheme not in _SCHEMES:
                raise ProcessError("the URL begins with neither http:// nor https://", code="webhook.unreachable")
            answer, data = self._answered(method, url, body, headers)
            location = answer.get_redirect_location()
            if not location:
                return answer.status, data
            origin, url = url, urljoin(url, location)
            if answer.status in (301, 302, 303):
                method, body = "HEAD" if method == "HEAD" else "GET", None
                headers = _without(headers, "content-type")
            if urlsplit(url).hostname != urlsplit(origin).hostname:
                headers = _without(headers, "authorization", "cookie")
        raise ProcessError(f"{_host(url)} redirected {_MOST_REQUESTS} times", code="webhook.unreachable")

    def _answered(
        self, method: str, url: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[urllib3.BaseHTTPResponse, bytes]:
        """Send one request and read its whole response."""
        headers = _login(url, headers)
        answer = self._pool.request(method, url, body=body, headers=headers, redirect=False, preload_content=False)
        try:
            data = bytearray()
            while piece := answer.read1(_PIECE):
                data += piece
                if len(data) > self.settings.max_size:
                    raise ValueError(f"the response has more than {self.settings.max_size} bytes (response.maxSize)")
        except BaseException:
            answer.close()  # its connection still has the rest
            raise
        answer.release_conn()
        return answer, bytes(data)

    def _sent(self, url: str, body: str) -> tuple[int, bytes]:
        try:
            status, data = self._followed(self.settings.method.upper(), url, body.encode() or None)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            reason = _reason(error, self.settings.timeout)
            raise ProcessError(f"no answer from {_host(url)}: {reason}", code="webhook.unreachable") from None
        if status >= 500:
            shown = data[:_SHOWN].decode("utf-8", "replace")
            raise ProcessError(f"{_host(url)} answered {status}: {shown}", code="webhook.status")
        return status, data


def backoff_waits(settings: WebhookHttpSettings) -> Iterator[float]:
    """Yield the waits between requests, each at least the first and at most the longest."""
    wait = settings.shortest or _SHORTEST
    longest = settings.longest or _LONGEST
    while True:
        yield min(wait, longest)
        wait = min(wait * max(settings.factor, 1), longest)


def _login(url: str, headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with the URL's login, which urllib3 does not send; an Authorization header wins."""
    parts = urlsplit(url)
    if parts.username is None or any(name.lower() == "authorization" for name in headers):
        return headers
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {**headers, "Authorization": f"Basic {base64.b64encode(login).decode()}"}


def _without(headers: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}


class _PublicHTTP(TimedHTTP):
    """Connects to public addresses only. :meth:`_new_conn` is called for each connection, also after a redirect."""

    @override
    def _new_conn(self) -> socket.socket:
        try:
            return connect_public((self.host, self.port or self.default_port), self.timeout, None, self.socket_options)
        except OSError as error:
            raise urllib3.exceptions.NewConnectionError(self, str(error)) from error


class _PublicHTTPS(_PublicHTTP, TimedHTTPS):
    """Like :class:`_PublicHTTP`; the certificate must match the host's name."""


class _PublicHTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls: Any = _PublicHTTP


class _PublicHTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls: Any = _PublicHTTPS


def _templated(template: Compiled, record: Record, setting: str) -> str:
    try:
        return str(template(record))
    except Exception as error:  # a template may raise any error on a record
        raise ProcessError(f"{setting}: {failure(error)}", code="expression.failed") from error


def _normal(url: str) -> str:
    """Return the URL with its query string encoded, as in Conduit. Raises :class:`ProcessError`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ProcessError(f"request.url is no URL: {error}", code="webhook.unreachable") from None
    query = sorted(parse_qsl(parts.query, keep_blank_values=True), key=itemgetter(0))
    return urlunsplit(parts._replace(query=urlencode(query)))


def _host(url: str) -> str:
    # a URL may contain secrets in its path, in its query and before its host
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _reason(error: Exception, seconds: float) -> str:
    inner: Any = getattr(error, "reason", None) or error
    if isinstance(inner, urllib3.exceptions.ReadTimeoutError):
        return f"the response was not complete after {seconds:g}s (request.timeout)"
    return f"{type(inner).__name__}: {str(inner).rpartition('>: ')[2] or inner}"
