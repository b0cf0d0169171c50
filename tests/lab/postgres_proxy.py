"""A connection to PostgreSQL that is cut at the worst moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator


class Proxy:
    """Proxy between a client and PostgreSQL that cuts the connection at a COMMIT on request.

    ``lose``: the ``question``, which the server never gets; the ``answer``; or the question arrives ``late``, after
    ``until``, when the client has long been cut off. ``silence``: nothing more passes until ``until``, and nothing is
    cut.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.lose: str | None = None
        self.until: Callable[[], object] = lambda: None
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            pair = _Line(self, client, server)
            threading.Thread(target=pair.from_client, daemon=True).start()
            threading.Thread(target=pair.from_server, daemon=True).start()

    def close(self) -> None:
        self._listener.close()


class _Line:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._doomed = self._silent = False

    def from_client(self) -> None:
        for data in self._chunks(self._client):
            if self._proxy.lose and b"COMMIT\x00" in data:
                mode, self._proxy.lose = self._proxy.lose, None
                self._doomed = True
                self._proxy.cut += 1
                if mode == "late":
                    self._client.shutdown(socket.SHUT_RDWR)
                    self._proxy.until()
                elif mode == "silence":
                    self._silent = True
                    self._proxy.until()
                    break
                elif mode == "question":
                    break
            self._server.sendall(data)
        self._hang_up()

    def from_server(self) -> None:
        for data in self._chunks(self._server):
            if self._doomed:  # the server has answered the COMMIT: it is applied
                if self._silent:
                    self._proxy.until()
                break
            self._client.sendall(data)
        self._hang_up()

    def _chunks(self, end: socket.socket) -> Iterator[bytes]:
        try:
            while data := end.recv(65536):
                yield data
        except OSError:
            return

    def _hang_up(self) -> None:
        for end in (self._client, self._server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
