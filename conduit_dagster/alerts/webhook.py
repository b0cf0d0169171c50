"""Posts JSON to a webhook. Its URL grants access to post: errors and logs contain its host only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import stamina

from conduit_dagster.daemon_threads import below, has_ended, in_daemon
from conduit_dagster.public_network import PrivateAddressError, public_handlers
from conduit_dagster.recovery.codes import class_of
from conduit_dagster.recovery.errors import TransientError

_UNREACHABLE: Final = "alerts.unreachable"
_ATTEMPTS, _WAIT, _IN_ALL = 3, 0.2, 10.0


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: the headers hold secrets, which are for the configured host only."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


class Webhook:
    """One receiver. ``timeout``: seconds, for the connection and for the answer each, and twice that for both."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float = 5.0, allow_private: bool = True) -> None:
        self._url, self._timeout = url, timeout
        self._headers = {"User-Agent": "conduit-dagster", **headers, "Content-Type": "application/json"}
        self._opener = build_opener(_NoRedirect, *(() if allow_private else public_handlers()))
        self.host: str = urlsplit(url).hostname or ""

    def send(self, body: Mapping[str, Any]) -> None:
        """Post ``body``; retry if that may help. Takes 20 s at most. It may arrive more than once.

        Raises ``TransientError`` (``alerts.unreachable``, ``alerts.refused``).
        """
        data = json.dumps(body, ensure_ascii=False).encode()
        for attempt in stamina.retry_context(_may_help, attempts=_ATTEMPTS, timeout=_IN_ALL, wait_initial=_WAIT):
            with attempt:
                self._post_in_time(data)

    def _post_in_time(self, data: bytes) -> None:
        """Post, and abandon a request that takes too long as a whole: each piece of an answer may come in time."""
        posted = in_daemon(lambda: self._post(data), below("alert"))
        if not has_ended(posted, 2 * self._timeout):
            raise self._failed(f"it gave no whole answer within {2 * self._timeout:g} s")
        posted.result()

    def _post(self, data: bytes) -> None:
        try:
            request = Request(self._url, data, self._headers, method="POST")
            self._opener.open(request, timeout=self._timeout).close()
        except HTTPError as error:
            error.close()
            raise self._answered(error.code) from None
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(getattr(error, "reason", None), PrivateAddressError):
                raise self._private() from None
            # from None: the library's message may quote the URL or a header
            raise self._failed(_why(error)) from None

    def _answered(self, status: int) -> TransientError:
        if class_of(status) == "transient":
            return self._failed(f"it answered {status}")
        fix = "correct alerts.webhook and alerts.headers in conduit.yaml"
        return TransientError(f"the webhook at {self.host} refused: {status}", code="alerts.refused", fix=fix)

    def _private(self) -> TransientError:
        fix = "name a public address in alerts.webhook, or set alerts.allow-private: true"
        message = f"the webhook at {self.host} has no public address, and private ones are refused"
        return TransientError(message, code="alerts.refused", fix=fix)

    def _failed(self, why: str) -> TransientError:
        fix = "nothing to do if it comes back: the next tick tries again"
        return TransientError(f"the webhook at {self.host} can't be reached: {why}", code=_UNREACHABLE, fix=fix)


def _may_help(error: Exception) -> bool:
    return isinstance(error, TransientError) and error.code == _UNREACHABLE


def _why(error: BaseException) -> str:
    inner = error.reason if isinstance(error, URLError) else error
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return type(inner).__name__
