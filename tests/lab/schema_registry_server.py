"""A schema registry with Confluent's HTTP API, as far as it is used."""

from __future__ import annotations

import json
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from conduit_dagster.schemas.schema_registry import FolderRegistry, UnknownSchemaError
from lab.http_server import QuietHandler


class RegistryServer(ThreadingHTTPServer):
    """Server over a registry in a folder. ``answer`` and ``page`` replace its own answers, ``pages`` those of
    some paths; ``headers`` go with each."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kept = FolderRegistry(str(folder))
        self.answer: int | None = None
        self.page: bytes | None = None
        self.pages: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []

    def url(self, login: str = "") -> str:
        """Its address."""
        return f"http://{login}127.0.0.1:{self.server_port}"


class _Handler(QuietHandler):
    server: RegistryServer

    def respond(self) -> None:
        """A schema; a new one if it comes with the request."""
        text = json.loads(self.body)["schema"] if self.command == "POST" else None
        self.server.seen.append((self.path, self.headers.get("Authorization", "")))
        if self.server.page is not None:
            self.answer(self.server.answer or 200, self.server.page, **self.server.headers)
            return
        if self.path in self.server.pages:
            self.answer(200, json.dumps(self.server.pages[self.path]).encode(), **self.server.headers)
            return
        status, body = self.server.answer, dict[str, Any](message="no")
        if status is None:
            try:
                status, body = 200, self._found(self.path.strip("/").split("/"), text)
            except UnknownSchemaError:
                status, body = 404, {"error_code": 40403, "message": "Schema not found"}
        self.answer(status, json.dumps(body).encode(), **self.server.headers)

    def _found(self, path: list[str], text: str | None) -> dict[str, Any]:
        kept = self.server.kept
        if path[0] == "schemas":
            return {"schema": kept.by_id(int(path[2])).text}
        schema = kept.register(path[1], text) if text is not None else kept.by_subject(path[1], int(path[3]))
        return {"id": schema.id, "schema": schema.text}
