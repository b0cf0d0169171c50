"""No secret of a file or of the project reaches Dagster's event log, Spark's event log (its UI), or our own store."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster_layer.commands import MODULE, call
from dagster_layer.project_folder import Folder
from lab.choice import some
from lab.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

SECRETS = {
    "ZQ_TOKEN": "zqtokenzq",
    "ZQ_QUERY": "zqqueryzq",
    "ZQ_ALERT": "zqalertzq",
    "ZQ_SPARK": "zqsparkzq",
}
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    trigger: available-now
    connectors:
      - {id: in, type: source, plugin: builtin:file, settings: {path: ./in.jsonl}}
      - id: db
        type: destination
        plugin: builtin:postgres
        settings: {url: "${ZQ_DB}", table: %s, create-table: auto}
    processors:
      - {id: decode, plugin: json.decode, settings: {field: .Payload.After}}
      - id: hook
        plugin: webhook.http
        condition: after.n == 1
        settings:
          request.url: http://127.0.0.1:1/?token=${ZQ_QUERY}
          headers.Authorization: Bearer ${ZQ_TOKEN}
          backoffRetry.count: 0
    dead-letter-queue: {plugin: builtin:file, window-size: 0, settings: {path: ./dead.jsonl}}
"""
PROJECT = """
%s
alerts: {webhook: "http://127.0.0.1:1/${ZQ_ALERT}"}
spark:
  conf:
    spark.eventLog.enabled: "true"
    spark.eventLog.compress: "false"
    spark.eventLog.dir: %s
    spark.my.password: ${ZQ_SPARK}
"""


@pytest.mark.parametrize(("table", "state"), some([("numbers", 'state: {url: "${ZQ_DB}"}')], [("nowhere.numbers", "")]))
def test_no_secret_is_told(folder: Folder, postgres_server: PostgresServer, table: str, state: str) -> None:
    """Where the run succeeds, with a record that the webhook refuses, and where the destination fails the run.

    The state store may share database and schema with the destination.
    """
    url = postgres_server.create_database()
    password = url.split("@")[0].rpartition(":")[2]
    events = folder.root / "events"
    events.mkdir()
    (folder.root / "conduit.yaml").write_text(PROJECT % (state, events.as_uri()))
    folder.write("p.yaml", PIPELINE % table)
    folder.append(range(3))
    done = call(folder, "dagster", "job", "execute", *MODULE, "-j", "p", ZQ_DB=url, **SECRETS)
    assert done.returncode == (table != "numbers"), done.stderr
    assert b"SparkListenerApplicationStart" in _content(events)
    assert b"STEP_" in _content(folder.root / "dagster")
    if table == "numbers":
        assert b"SparkListenerTaskEnd" in _content(events)
        assert '"p:hook"' in (folder.root / "dead.jsonl").read_text()
    found = _holding([password, *SECRETS.values()], folder.root)
    said = [secret for secret in (password, *SECRETS.values()) if secret in done.stdout + done.stderr]
    assert (found, said) == ({}, [])


def _content(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


def _holding(secrets: list[str], root: Path) -> dict[str, list[str]]:
    """The files below ``root`` that contain one of the secrets."""
    found: dict[str, list[str]] = {}
    for path in root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if held := [secret for secret in secrets if secret.encode() in data]:
                found[str(path.relative_to(root))] = held
    return found
