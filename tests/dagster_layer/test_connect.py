"""The same job on a real Spark Connect server: 3,201 films in, ten of them without a title."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dagster_layer.project_folder import Folder

ROOT = Path(__file__).parents[2]
MOVIES_FILE = ROOT.parent / "shared" / "data" / "movies.jsonl"
MOVIES = """
version: "2.2"
pipelines:
  - id: movies
    trigger: available-now
    connectors:
      - {{id: films, type: source, plugin: builtin:file, settings: {{path: {path}}}}}
      - {{id: all, type: destination, plugin: builtin:file, settings: {{path: ./all.jsonl}}}}
      - id: plain
        type: destination
        plugin: builtin:file
        settings: {{path: ./plain.jsonl, sdk.record.format: payload/json}}
    processors:
      - {{id: decode, plugin: json.decode, settings: {{field: .Payload.After}}}}
      - {{id: titled, plugin: error, condition: "not isinstance(after.Title, str)", settings: {{message: no title}}}}
      - {{id: rated, plugin: filter, condition: "after['IMDB Rating'] is None"}}
    dead-letter-queue: {{plugin: builtin:file, window-size: 0, settings: {{path: ./dead.jsonl}}}}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MOVIES_FILE.exists(), reason=f"there is no {MOVIES_FILE}"),
]


def _expected() -> dict[str, int]:
    films = [json.loads(line) for line in MOVIES_FILE.read_text().splitlines()]
    titled = [film for film in films if isinstance(film["Title"], str)]
    rated = [film for film in titled if film["IMDB Rating"] is not None]
    return {"read": len(films), "dead": len(films) - len(titled), "delivered": len(rated)}


def _lines(folder: Folder, name: str) -> list[Any]:
    return [json.loads(line) for line in (folder.root / name).read_text().splitlines()]


def test_the_movies_through_a_connect_server(folder: Folder, connect_server: Any) -> None:
    folder.write("movies.yaml", MOVIES.format(path=MOVIES_FILE))
    # a process that has a classic session cannot be a Connect client
    script = Path(__file__).with_name("run_job.py")
    env = {**connect_server.env, "CONDUIT_SPARK_URL": connect_server.url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script), "movies"],
        cwd=folder.root,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shown, expected = json.loads(done.stdout.splitlines()[-1]), _expected()
    assert expected["read"] == 3_201
    assert (shown["connect"], shown["records_read"], shown["records_dead_lettered"]) == (True, 3_201, 10)
    assert len(_lines(folder, "all.jsonl")) == len(_lines(folder, "plain.jsonl")) == expected["delivered"]
    assert len(_lines(folder, "dead.jsonl")) == 10
