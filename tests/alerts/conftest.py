"""A webhook on this machine that keeps what it gets, and a project's state store. No Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.http_server import QuietHandler, serving

from conduit_dagster.config.project import Project
from conduit_dagster.state.claim import open_store
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import consumers

SECRET = "s3cr3t"
ERROR = {
    "code": "x.y", "message": "it broke", "node": "orders:in", "place": None, "fix": "mend it", "fatal": True,
}  # fmt: skip


@dataclass
class Receiver:
    """What arrived, and how it is answered."""

    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answer: Callable[[dict[str, Any]], int] = lambda body: 204

    @property
    def url(self) -> str:
        """With secrets in its path and its query."""
        return f"http://localhost:{self.port}/hooks/{SECRET}?token={SECRET}"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state = Receiver()

    class Handler(QuietHandler):
        def respond(self) -> None:
            body = json.loads(self.body)
            state.bodies.append(body)
            state.headers.append(dict(self.headers))
            state.paths.append(self.path)
            self.answer(state.answer(body), Location=f"http://localhost:{state.port}/elsewhere")

    with serving(ThreadingHTTPServer(("localhost", 0), Handler)) as server:
        state.port = server.server_port
        yield state


@dataclass
class Shop:
    """A project and its state store."""

    root: Path
    database: sa.Engine

    @property
    def project(self) -> Project:
        return Project.find(self.root, {})

    def store(self, pipeline: str, work: Callable[[PipelineStore], object]) -> None:
        lease = acquire(self.database, pipeline, 10)
        work(PipelineStore(self.database, lease))
        lease.release()

    def begin(self, pipeline: str) -> None:
        def work(store: PipelineStore) -> None:
            store.status.begin(RunStart("r", f"{pipeline}.yaml"))
            store.registering(lambda registry, _: registry.register_consumer("dead_letters", "dlq"))

        self.store(pipeline, work)

    def degrade(self, *names: str, **error: Any) -> None:
        for pipeline in names:
            self.begin(pipeline)
            self.store(pipeline, lambda store: store.status.failed({**ERROR, **error}, None, "r"))

    def letters(self, pipeline: str, total: int) -> None:
        with self.database.begin() as connection:
            mine = (consumers.c.pipeline == pipeline, consumers.c.kind == "dlq")
            connection.execute(sa.update(consumers).where(*mine).values(delivered=total))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name in ("CONDUIT_HOME", "CONDUIT_STATE_URL", "CONDUIT_ALERTS_WEBHOOK"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "shop"
    root.mkdir()
    (root / "conduit.yaml").write_text("")
    project = Project.find(root, {})
    database = open_store(project.state_url, project.home)
    yield Shop(root, database)
    database.dispose()
