"""HTTP servers of tests, on this machine."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

ServerT = TypeVar("ServerT", bound=ThreadingHTTPServer)


class QuietHandler(BaseHTTPRequestHandler, ABC):
    """Writes nothing about what it is asked."""

    @abstractmethod
    def respond(self) -> None:
        """Whatever the method: calls :meth:`answer`."""

    def do_GET(self) -> None:
        """As the library calls it."""
        self.respond()

    def do_POST(self) -> None:
        """Likewise."""
        self.respond()

    def do_PUT(self) -> None:
        """Likewise."""
        self.respond()

    def do_HEAD(self) -> None:
        """Likewise."""
        self.respond()

    @property
    def body(self) -> bytes:
        """The request's, read once."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Sends it all."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


@contextmanager
def serving(server: ServerT) -> Iterator[ServerT]:
    """Answers while the block runs."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
