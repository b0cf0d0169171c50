"""``pipelines reload`` with Dagster's real web server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from dagster_layer.project_folder import NUMBERS, TAKES_ALL, Folder
from waiting import wait_until

from conduit_dagster.cli.main import main

ROOT = Path(__file__).parents[2]
JOBS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name } } } } }"


@pytest.fixture
def server(folder: Folder) -> Iterator[str]:
    """The URL of a web server that has loaded the project's first pipeline."""
    folder.numbers()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder.root / "location.py").write_text("from conduit_dagster.definitions import defs\n")
    home = folder.root / "dagster"
    home.mkdir()
    (home / "dagster.yaml").touch()
    own = {"DAGSTER_HOME": str(home), "PYTHONPATH": str(ROOT), "DAGSTER_DISABLE_TELEMETRY": "1"}
    program = Path(sys.executable).parent / "dagster-webserver"
    with (folder.root / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), "-f", "location.py", "-h", "127.0.0.1", "-p", str(port)],
            cwd=folder.root,
            env={**os.environ, **own},
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: jobs(url) == {"numbers"}, "it has loaded the project", 120)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def jobs(url: str) -> set[str]:
    """The pipelines that the web server knows."""
    body = json.dumps({"query": JOBS}).encode()
    try:
        with urlopen(Request(f"{url}/graphql", body, {"Content-Type": "application/json"}), timeout=30) as answer:
            (repository,) = json.load(answer)["data"]["repositoriesOrError"]["nodes"]
    except OSError:
        return set()
    return {one["name"] for one in repository["jobs"] if not one["name"].startswith("__")}


def reload(capsys: pytest.CaptureFixture[str], url: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["pipelines", "reload", "--url", url, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_pipeline_that_was_added_is_there_after_a_reload(
    folder: Folder, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = NUMBERS.format(id="more", trigger="available-now", queue=TAKES_ALL.replace("dead", "more-dead"))
    folder.write("more.yaml", more.replace("out.jsonl", "more.jsonl"))
    assert jobs(server) == {"numbers"}
    code, envelope = reload(capsys, server)
    assert (code, envelope["summary"]) == (0, "1 code location loaded again")
    assert [one["error"] for one in envelope["result"]["locations"]] == [None]
    assert jobs(server) == {"numbers", "more"}
    # one that can't be loaded is said so, and what was there is not
    (folder.root / "location.py").write_text("no Python")
    code, envelope = reload(capsys, server)
    assert (code, envelope["error"]["code"]) == (1, "dagster.load_failed")
    assert "location.py" in envelope["error"]["message"]


def test_without_a_server_there_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        code, envelope = reload(capsys, f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert (code, envelope["error"]["code"]) == (1, "dagster.unreachable")
    assert "--url" in envelope["error"]["fix"]
