"""A proxy before an S3 server that loses answers: the server has done what was asked, and the client does not know.

Or one that lets nothing be removed, as for a user who may only read and write.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from .http_server import QuietHandler, serving

_LOST = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>we lost it</Message></Error>"
_REFUSED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_UNKNOWN = b"<?xml version='1.0'?><Error><Code>NotImplemented</Code><Message>no such header</Message></Error>"
_OWN = {"connection", "transfer-encoding", "content-length"}


class LossyProxy(ThreadingHTTPServer):
    """Passes requests on; the first answer to each request that ``loses`` names is an error instead."""

    daemon_threads = True
    knows_conditions = True

    def __init__(self, address: str, loses: Callable[[str, str], bool]) -> None:
        """``loses``: whether the answer to a request with this method and path is lost."""
        super().__init__(("127.0.0.1", 0), _Forwards)
        self.server_name_behind = address.removeprefix("http://")
        self._loses, self._lock = loses, threading.Lock()
        self.lost = list[str]()
        """Paths whose answers were lost, each once."""

    @property
    def address(self) -> str:
        """Its HTTP address."""
        return f"http://127.0.0.1:{self.server_port}"

    def refuses(self, method: str, path: str) -> bool:
        """Return whether this request is not passed on."""
        del method, path
        return False

    def loses(self, method: str, path: str) -> bool:
        """Return whether the answer to this request is lost; that to its repetition is not."""
        with self._lock:
            if path in self.lost or not self._loses(method, path):
                return False
            self.lost.append(path)
            return True


class _KeepingProxy(LossyProxy):
    """Refuses each removal; loses nothing."""

    def __init__(self, address: str) -> None:
        super().__init__(address, lambda method, path: False)

    def refuses(self, method: str, path: str) -> bool:
        """Return whether objects are to be removed."""
        return method == "DELETE" or (method == "POST" and path.endswith("?delete"))


class _Forwards(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: LossyProxy

    def respond(self) -> None:
        """Pass a request on, and its answer back, unless that is lost."""
        body = self.body
        if self.server.refuses(self.command, self.path):
            self.answer(403, _REFUSED)
            return
        if not self.server.knows_conditions and "If-None-Match" in self.headers:
            self.answer(501, _UNKNOWN)
            return
        behind = http.client.HTTPConnection(self.server.server_name_behind, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        behind.request(self.command, self.path, body, headers)
        answer = behind.getresponse()
        body = answer.read()
        behind.close()
        if self.server.loses(self.command, self.path):
            self.answer(500, _LOST)
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def losing_answers(address: str, loses: Callable[[str, str], bool]) -> Generator[LossyProxy]:
    """Serve a proxy before the server at ``address``."""
    with serving(LossyProxy(address, loses)) as proxy:
        yield proxy


@contextmanager
def refusing_removals(address: str) -> Generator[str]:
    """Serve a proxy before the server at ``address`` that removes nothing; yield its address."""
    with serving(_KeepingProxy(address)) as proxy:
        yield proxy.address


@contextmanager
def refusing_conditions(address: str) -> Generator[str]:
    """Serve a proxy before the server at ``address`` that knows no conditions of a write; yield its address."""
    with serving(LossyProxy(address, lambda method, path: False)) as proxy:
        proxy.knows_conditions = False
        yield proxy.address
