"""HTTP responses that are complete within a time, however slowly their bytes come."""

from __future__ import annotations

import io
import socket
import time
from http import HTTPStatus
from http.client import HTTPResponse, parse_headers
from typing import Any, Final

import urllib3
from typing_extensions import override
from urllib3.connection import HTTPConnection, HTTPSConnection


class _TimedReader(io.RawIOBase):
    """Reads from a socket until its timeout has passed since the first read: a socket's own is for each byte."""

    def __init__(self, inner: Any, connection: socket.socket) -> None:
        self._inner, self._connection = inner, connection
        self._seconds = connection.gettimeout()
        self._end = None if self._seconds is None else time.monotonic() + self._seconds

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any, /) -> int | None:
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the response was not complete after {self._seconds:g}s")
            self._connection.settimeout(left)
        return self._inner.readinto(buffer)

    @override
    def close(self) -> None:
        self._inner.close()
        super().close()


_SWITCHING: Final = 101
"""The one status below 200 that is an answer."""


class _TimedResponse(HTTPResponse):
    """A response whose status, headers and body come within the timeout, with all that is told before the answer.

    Python's own skips ``100 Continue`` alone: after ``103 Early Hints``, the answer was that of the next request.
    """

    def __init__(self, sock: socket.socket, *arguments: Any, **more: Any) -> None:
        super().__init__(sock, *arguments, **more)
        self.fp = io.BufferedReader(_TimedReader(self.fp.detach(), sock))

    def _read_status(self) -> tuple[str, int, str]:
        # called by begin(), which skips 100 by itself
        own: Any = super()
        while True:
            version, status, reason = own._read_status()
            if not _SWITCHING < status < HTTPStatus.OK:
                return version, status, reason
            parse_headers(self.fp)


class TimedHTTP(HTTPConnection):
    """A connection whose responses are timed as a whole."""

    response_class: Any = _TimedResponse


class TimedHTTPS(HTTPSConnection):
    """Like :class:`TimedHTTP`, with TLS."""

    response_class: Any = _TimedResponse


class _TimedHTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls: Any = TimedHTTP


class _TimedHTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls: Any = TimedHTTPS


class TimedPoolManager(urllib3.PoolManager):
    """A pool manager whose timeout holds for each response as a whole, redirects not counted."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        pools: Any = {"http": _TimedHTTPPool, "https": _TimedHTTPSPool}
        self.pool_classes_by_scheme = pools
