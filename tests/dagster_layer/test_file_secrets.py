"""A secret from a file is never revealed, whatever fails and quotes it: by the command line, by Dagster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dagster_layer.commands import MODULE, ROOT, call
from dagster_layer.project_folder import Folder
from lab.choice import some
from lab.postgres_server import PostgresServer
from lab.verbs import Ran, run_here

from conduit_dagster.assets.run_op import read_again
from conduit_dagster.config import Project, references
from conduit_dagster.config.secret_providers import Unresolved
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.secret_values import forget

Verb = Callable[..., Ran]
PASSWORD = "zq-pass/word-zq"
FORMS = (PASSWORD, "zq-pass%2Fword-zq", "pass/word", "sparkvaluezq")
DATABASE = """
      - id: out
        type: destination
        plugin: builtin:postgres
        settings: {url: "%s", table: numbers, create-table: auto}
"""
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    trigger: available-now
    connectors:
      - {id: in, type: source, plugin: builtin:file, settings: {path: ./in.jsonl}}
      %s
    processors:
      - {id: decode, plugin: json.decode, settings: {field: .Payload.After}}
      - {id: chatty, plugin: chatty, settings: {word: "${file:secrets/password}", fails: "%s"}}
    dead-letter-queue: {plugin: builtin:file, window-size: 0, settings: {path: ./dead.jsonl}}
"""
CHATTY = """
import structlog
from conduit_dagster.sdk import DROP, DirectDestination, FatalError, Processor, ProcessError, ProcessorSettings
from conduit_dagster.connectors.file.destination import FileDestination

log = structlog.get_logger("chatty")


class Settings(ProcessorSettings):
    word: str
    fails: str = ""


class Chatty(Processor):
    name = "chatty"
    Settings = Settings

    def process(self, record):
        word = self.settings.word
        if self.settings.fails == "nack":
            raise ProcessError(f"refused with {word}")
        if self.settings.fails == "raise":
            raise RuntimeError(f"login with {word}") from ValueError(f"{{'password': {word!r}}}")
        return record


class Publishes(FileDestination):
    name = "publishes"

    def publish(self, delivery):
        log.warning("sending", word=self.settings.model_extra["word"])
        self.fail("publish")
        return super().publish(delivery)

    def writer(self, task):
        self.fail("task")
        return super().writer(task)

    def check(self):
        self.fail("check")

    def fail(self, where):
        word = self.settings.model_extra["word"]
        if self.settings.model_extra["at"] == where:
            raise RuntimeError(f"login with {word}") from ValueError(f"{{'password': {word!r}}}")
        if self.settings.model_extra["at"] == f"fatal {where}":
            raise FatalError(f"login with {word}", code="mine.login", place=f"as {word}", fix=f"not {word}")
"""
PROJECT = """
spark:
  conf:
    spark.eventLog.enabled: "true"
    spark.eventLog.compress: "false"
    spark.eventLog.dir: %s
    spark.my.plain: "${file:secrets/spark}"
"""
OUT = """
      - id: out
        type: destination
        plugin: publishes
        settings: {path: ./out.jsonl, word: "${file:secrets/password}", at: %s}
"""
PLACES = ("publish", "task", "check", "fatal publish", "fatal task", "fatal check")


@pytest.fixture
def secret_folder(folder: Folder) -> Folder:
    """A project whose secrets are in files outside its pipelines."""
    (folder.root / "secrets").mkdir()
    (folder.root / "secrets" / "password").write_text(PASSWORD + "\n")
    (folder.root / "secrets" / "spark").write_text("sparkvaluezq")
    (folder.root / "plugins").mkdir()
    (folder.root / "plugins" / "mine.py").write_text(CHATTY)
    folder.append(range(3))
    return folder


def leaks(root: Path, *texts: str) -> dict[str, list[str]]:
    """The files below ``root``, except the secrets', that contain a form of the secrets; and such texts."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.parent.name != "secrets"]
    given = {str(path.relative_to(root)): path.read_bytes() for path in paths}
    given |= {f"text {number}": text.encode() for number, text in enumerate(texts)}
    found = {name: [form for form in FORMS if form.encode() in data] for name, data in given.items()}
    return {name: forms for name, forms in found.items() if forms}


def content(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


def command(folder: Folder, *words: str, **more: str) -> Ran:
    """Run a command in a process of its own, with ``more`` in its environment."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CI": "true", **more}
    done = subprocess.run(
        [sys.executable, "-m", "conduit_dagster.cli.main", *words],
        cwd=folder.root, env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def verb(secret_folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verb:
    """Run a command that needs no Spark in this process, which knows no secret when it begins."""
    monkeypatch.chdir(secret_folder.root)

    def run(*words: str) -> Ran:
        forget()
        return run_here(capsys, *words)

    return run


def database(server: PostgresServer) -> str:
    """A destination whose password is wrong: it is the secret."""
    user, _, place = server.create_database().partition("@")
    wrong = user.rpartition(":")[0] + ":${file:secrets/password}"
    return (DATABASE % f"{wrong}@{place}").strip()


@pytest.mark.slow
def test_a_wrong_password_by_the_command_line(
    secret_folder: Folder, postgres_server: PostgresServer, connect_server: Any, verb: Verb
) -> None:
    folder = secret_folder
    (folder.root / "secrets" / "password").write_text("zq-pass%2Fword-zq\n")
    (folder.root / "conduit.yaml").write_text(PROJECT % (folder.root / "events").as_uri())
    (folder.root / "events").mkdir()
    folder.write("p.yaml", PIPELINE % (database(postgres_server), ""))
    told = command(folder, "doctor", "--deep", "--json"), command(folder, "run", "--once", "--verbose")
    # a server takes no such settings from its clients
    (folder.root / "conduit.yaml").unlink()
    done = [
        *told,
        command(folder, "run", "--once", "--json", **connect_server.settings),
        verb("pipelines", "describe", "p"),
        verb("pipelines", "describe", "p", "--json"),
        verb("validate", "--json", "--debug"),
        command(folder, "dry-run", "p"),
    ]
    assert done[1].code == done[2].code == 1
    assert "postgres.login" in done[1].err and "postgres.login" in done[2].out and "***" in done[3].out
    assert "${file:secrets/password}" in done[4].out
    assert b"SparkListenerEnvironmentUpdate" in content(folder.root / "events")
    assert leaks(folder.root, *(one.out + one.err for one in done)) == {}


@pytest.mark.slow
def test_a_wrong_password_in_dagster(secret_folder: Folder, postgres_server: PostgresServer) -> None:
    folder = secret_folder
    (folder.root / "secrets" / "password").write_text("zq-pass%2Fword-zq\n")
    (folder.root / "conduit.yaml").write_text(PROJECT % (folder.root / "events").as_uri())
    (folder.root / "events").mkdir()
    folder.write("p.yaml", PIPELINE % (database(postgres_server), ""))
    done = call(folder, "dagster", "job", "execute", *MODULE, "-j", "p")
    assert done.returncode == 1 and b"postgres.login" in content(folder.root / "dagster")
    assert leaks(folder.root, done.stdout, done.stderr) == {}


@pytest.mark.parametrize("place", PLACES)
def test_errors_that_quote_it(secret_folder: Folder, place: str, capfd: pytest.CaptureFixture[str]) -> None:
    """In a task and on the driver, with the cause in the traceback."""
    folder = secret_folder
    folder.write("p.yaml", PIPELINE % ((OUT % place).strip(), ""))
    result = folder.run("p")
    assert not result.success
    told = [f"{entry!r} {entry.to_json()}" for entry in folder.instance.all_logs(result.run_id)]
    assert "login with ***" in " ".join(told)
    said = capfd.readouterr()
    assert leaks(folder.root, *told, said.out, said.err) == {}


@pytest.mark.parametrize("fails", ["nack", "raise"])
def test_nacks_that_quote_it(secret_folder: Folder, fails: str, capfd: pytest.CaptureFixture[str]) -> None:
    folder = secret_folder
    folder.write("p.yaml", PIPELINE % ((OUT % "nowhere").strip(), fails))
    result = folder.run("p")
    told = [f"{entry!r} {entry.to_json()}" for entry in folder.instance.all_logs(result.run_id)]
    assert result.success and "with ***" in " ".join(told)
    assert (folder.root / "dead.jsonl").read_text().count("with ***") == 3
    said = capfd.readouterr()
    assert leaks(folder.root, *told, said.out, said.err) == {}


def test_a_provider_that_fails_is_worth_another_attempt(secret_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the file is wrong in another way."""
    away = Unresolved("config.secret_failed", "the provider of secrets vault is away")
    monkeypatch.setattr(references, "ask_provider", lambda name, reference: away)
    project = Project.find(secret_folder.root, {})
    cases = (("source", TransientError, "secrets.unavailable"), ("x", FatalError, "pipeline.invalid"))
    for type_, kind, code in cases:
        text = (PIPELINE % ((OUT % "nowhere").strip(), "")).replace("file:secrets/password", "vault:x")
        path = secret_folder.write("p.yaml", text.replace("type: source", f"type: {type_}"))
        with pytest.raises(kind, match="vault is away") as caught:
            read_again("p", str(path), project)
        assert caught.value.code == code


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_by_the_command_line(secret_folder: Folder, verb: Verb) -> None:
    folder = secret_folder
    cases = {"driver": ("publish", ""), "task": ("fatal task", ""), "nacks": ("nowhere", "nack")}
    for name, (place, fails) in cases.items():
        out = (OUT % place).strip().replace("out.jsonl", f"{name}.jsonl")
        text = (PIPELINE % (out, fails)).replace("id: p", f"id: {name}").replace("dead.jsonl", f"{name}.dead")
        folder.write(f"{name}.yaml", text)
    done = [
        command(folder, "run", "--once", "--verbose"),
        *(verb("pipelines", "describe", name) for name in cases),
        *(verb("dlq", "list", name) for name in cases),
        command(folder, "dry-run", "nacks"),
    ]
    assert "with ***" in done[0].err
    assert all("with ***" in one.out for one in (*done[1:3], done[6]))
    assert leaks(folder.root, *(one.out + one.err for one in done)) == {}


FORMATS = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - id: in
        type: source
        plugin: spark:json
        settings: {path: ./src, word: "${file:secrets/password}", schema: n BIGINT, key: n}
      - {id: out, type: destination, plugin: "spark:json", settings: {path: ./out, word: "${file:secrets/password}"}}
    processors:
      - {id: q, plugin: sql, settings: {columns: n BIGINT, query: "SELECT n, concat(n, 'x') AS l FROM record"}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("url", some(["shared"], ["local[2]"]))
def test_spark_shows_no_options_of_a_format(secret_folder: Folder, url: str) -> None:
    """Options appear as text in plans, and a Connect server describes a job by its plan."""
    folder = secret_folder
    for name in ("src", "events"):
        (folder.root / name).mkdir()
    (folder.root / "in.jsonl").rename(folder.root / "src" / "in.jsonl")
    settings = PROJECT % (folder.root / "events").as_uri()
    (folder.root / "conduit.yaml").write_text(settings.replace("conf:", f"url: {url}\n  conf:"))
    folder.write("p.yaml", FORMATS)
    try:
        done = command(folder, "run", "--once", "--json")
    finally:
        if url == "shared":
            command(folder, "spark", "stop")
    assert done.code == 0, done.out + done.err
    described = content(folder.root / "events")
    assert (b"Spark Connect - session_id" in described) == (url == "shared") and b"(redacted)" in described
    assert b"InsertIntoHadoopFsRelationCommand" in described
    assert leaks(folder.root, done.out, done.err) == {}
