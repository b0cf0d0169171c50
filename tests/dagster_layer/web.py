"""Dagster's real web server for a project, and its responses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
from dagster_layer.project_folder import Folder
from lab.server_process import free_port
from lab.waiting import wait_until

ROOT = Path(__file__).parents[2]
_JOBS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } jobs { name } } } } }"
_LAUNCH = """
mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""


@contextmanager
def web_server(folder: Folder, dagster: str = "", *options: str, **environment: str) -> Generator[str]:
    """The URL of a server that has loaded the project; ``dagster`` is its ``dagster.yaml``; more ``options``."""
    port = free_port()
    (folder.root / "location.py").write_text("from conduit_dagster.definitions import defs\n")
    home = folder.root / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text(dagster)
    own = {"DAGSTER_HOME": str(home), "PYTHONPATH": str(ROOT), "DAGSTER_DISABLE_TELEMETRY": "1", **environment}
    program = Path(sys.executable).parent / "dagster-webserver"
    with (folder.root / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), "-f", "location.py", "-h", "127.0.0.1", "-p", str(port), *options],
            cwd=folder.root,
            env={**os.environ, **own},
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: jobs(url), "it has loaded the project", 240)
        yield url
    finally:
        servers = _code_servers(process.pid)
        process.terminate()
        process.wait(120)
        # one whose home is removed while it looks whether its runs have ended stays for ever
        wait_until(lambda: not any(map(psutil.Process.is_running, servers)), "the code servers have ended", 60)


def _code_servers(web_server: int) -> list[psutil.Process]:
    children = psutil.Process(web_server).children(recursive=True)
    return [child for child in children if "api" in child.cmdline() and "grpc" in child.cmdline()]


def jobs(url: str) -> set[str]:
    """The jobs of pipelines that the web server knows; none while it starts."""
    try:
        (repository,) = _ask(url, _JOBS)["repositoriesOrError"]["nodes"]
    except OSError:
        return set()
    names = {one["name"] for one in repository["jobs"]}
    ours = {name for name in names if name.startswith(("__", "conduit__")) or name.endswith(("__replay", "__discard"))}
    return names - ours


def launch(url: str, job: str) -> str:
    """Start a run of a job, as the UI's Launchpad does; return its id."""
    (repository,) = _ask(url, _JOBS)["repositoriesOrError"]["nodes"]
    selector = {
        "repositoryLocationName": repository["location"]["name"],
        "repositoryName": repository["name"],
        "pipelineName": job,
    }
    launched = _ask(url, _LAUNCH, params={"selector": selector, "runConfigData": {}, "mode": "default"})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return launched["run"]["runId"]


def _ask(url: str, query: str, **variables: Any) -> dict[str, Any]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    with urlopen(Request(f"{url}/graphql", body, {"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)["data"]
