"""Local HTTP servers for tests."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

ServerT = TypeVar("ServerT", bound=ThreadingHTTPServer)


class QuietHandler(BaseHTTPRequestHandler, ABC):
    """Handler that logs no requests."""

    @abstractmethod
    def respond(self) -> None:
        """Call :meth:`answer`, whatever the method."""

    def do_GET(self) -> None:
        """Called by the library."""
        self.respond()

    def do_POST(self) -> None:
        """Called by the library."""
        self.respond()

    def do_PUT(self) -> None:
        """Called by the library."""
        self.respond()

    def do_DELETE(self) -> None:
        """Called by the library."""
        self.respond()

    def do_HEAD(self) -> None:
        """Called by the library."""
        self.respond()

    @property
    def body(self) -> bytes:
        """Body of the request, read once."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send a complete response."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""


@contextmanager
def serving(server: ServerT) -> Iterator[ServerT]:
    """Serve while the block runs."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
