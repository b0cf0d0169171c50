"""The tests of pipeline files as pytest runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in.jsonl}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out.jsonl}}
    processors:
      - {id: decode, plugin: json.decode, settings: {field: .Payload.After}}
    tests:
      - name: a good one
        records: [{after: '{"i": 1}'}]
        expect: {destinations: {out: [{after: {i: 1}}]}}
      - name: a bad one
        records: [{after: '{"i": 1}'}]
        expect: {destinations: {out: [{after: {i: 2}}]}}
"""


def pytest_in(folder: Path, *words: str) -> tuple[int, str]:
    """Run it there, as a user does."""
    # the fixtures of this project do not belong to that one
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *words]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.slow
def test_each_is_a_test(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "p.yaml").write_text(PIPELINE)
    (tmp_path / "pipelines" / "other.yaml").write_text("a: [1")
    code, out = pytest_in(tmp_path)
    assert code == 1 and "1 failed, 1 passed" in out, out
    assert "p: a bad one" in out and "out: record 1: after" in out and "expected {'i': 2}" in out
    assert "Traceback" not in out
    assert pytest_in(tmp_path, "-k", "good")[0] == 0
    assert not (tmp_path / ".conduit").exists()


@pytest.mark.slow
def test_a_file_with_mistakes_fails(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE.replace("json.decode", "json.decoed"))
    code, out = pytest_in(tmp_path)
    assert code == 2 and "there is no processor json.decoed" in out, out


def test_a_file_of_another_program_is_none_of_its_own(tmp_path: Path) -> None:
    step = "{name: 'run tests: all', script: [make]}"
    (tmp_path / "bitbucket-pipelines.yml").write_text(f"pipelines:\n  default:\n    - step: {step}\n")
    (tmp_path / "test_one.py").write_text("def test_one():\n    pass\n")
    code, out = pytest_in(tmp_path)
    assert code == 0 and "1 passed" in out, out
