"""``pipelines reload`` with Dagster's real web server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from dagster_layer.project_folder import NUMBERS, TAKES_ALL, Folder
from dagster_layer.web import jobs, web_server

from conduit_dagster.cli.main import main


@pytest.fixture
def server(folder: Folder) -> Iterator[str]:
    """The URL of a web server that has loaded the project's first pipeline."""
    folder.numbers()
    with web_server(folder) as url:
        yield url


def reload(capsys: pytest.CaptureFixture[str], url: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["pipelines", "reload", "--url", url, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_pipeline_that_was_added_is_there_after_a_reload(
    folder: Folder, server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = NUMBERS.format(id="more", trigger="available-now", queue=TAKES_ALL.replace("dead", "more-dead"))
    folder.write("more.yaml", more.replace("out.jsonl", "more.jsonl"))
    assert jobs(server) == {"numbers"}
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which does not know this machine's own addresses
    code, envelope = reload(capsys, server)
    assert (code, envelope["summary"]) == (0, "1 code location loaded again")
    monkeypatch.delenv("http_proxy")
    assert [one["error"] for one in envelope["result"]["locations"]] == [None]
    assert jobs(server) == {"numbers", "more"}
    # one that can't be loaded is reported, and its previous version is not used
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
    assert "dagster dev -m conduit_dagster.definitions" in envelope["error"]["fix"]


@pytest.mark.parametrize("user", ["reader:s3cret", "reader:s3c@ret", ":s3cret"])
def test_a_password_in_the_url_is_not_said(capsys: pytest.CaptureFixture[str], user: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        code, envelope = reload(capsys, f"http://{user}@127.0.0.1:{closed.getsockname()[1]}")
    assert (code, envelope["error"]["code"]) == (1, "dagster.unreachable")
    assert "s3c" not in json.dumps(envelope)
