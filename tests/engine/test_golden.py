"""Conduit's own files run unchanged and write what Conduit wrote (shared/golden/README.md gives the rules)."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from lab.support import SHARED, Lab
from pyspark.sql import SparkSession

GOLDEN = SHARED / "golden"


CASES = [path.name for path in sorted(GOLDEN.iterdir()) if path.is_dir()] if GOLDEN.is_dir() else []


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, tmp_path: Path, spark: SparkSession) -> None:
    shutil.copytree(GOLDEN / case, tmp_path / "pipelines", copy_function=shutil.copyfile)
    for name in (tmp_path / "pipelines").glob("in*.jsonl"):
        shutil.move(name, tmp_path / name.name)
    lab = Lab(tmp_path, spark)
    result = lab.run("golden")
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    _check_error(expected["error"], result.error)
    for number in ("", "2"):
        _check_output(GOLDEN / case / f"expected-out{number}.jsonl", tmp_path / f"out{number}.jsonl", case)
    _check_letters(GOLDEN / case / "expected-dead.jsonl", tmp_path / "dead.jsonl")


def _check_error(expected: str | None, error: Any) -> None:
    assert (error is None) == (expected is None), error
    if expected is not None:
        # the wording differs; the cause, which Conduit's message ends in, is the same
        assert expected.rsplit(": ", 1)[-1] in error.message


def _check_output(expected: Path, path: Path, case: str) -> None:
    if not expected.exists():
        return
    wanted, found = [_rows(p) for p in (expected, path)]
    if case == "two-sources":
        wanted, found = [sorted(rows, key=_source_of) for rows in (wanted, found)]
    assert found == wanted


def _source_of(row: Any) -> bool:
    return row["id"] > 100


def _check_letters(expected: Path, path: Path) -> None:
    if not expected.exists():
        return
    wanted, found = [_rows(p) for p in (expected, path)]
    positions = [row["position"] for row in found]
    assert len(set(positions)) == len(positions)
    assert [_letter(row) for row in found] == [_letter(row) for row in wanted]


def _letter(row: Any) -> Any:
    metadata = {k: v for k, v in row["metadata"].items() if k == "conduit.dlq.nack.node.id" or "dlq" not in k}
    # Conduit's second architecture has it here as well; ours is conduit.dlq.source.connector.id
    metadata.pop("conduit.source.connector.id", None)
    return {**row, "metadata": metadata, "position": None}


def _rows(path: Path) -> list[Any]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [_normal(_parsed(line)) for line in lines]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _normal(value: Any, key: str = "") -> Any:
    """Times are equal, numbers are compared as Conduit's 64-bit floats, raw JSON as JSON."""
    if key in ("opencdc.readAt", "opencdc.createdAt", "ts_ms"):
        return "TIME"
    if isinstance(value, dict):
        return {k: _normal(v, k) for k, v in value.items()}
    if isinstance(value, list):
        # the order of a document's keys, in a schema
        items = sorted(value, key=lambda v: v["field"]) if key == "fields" else value
        return [_normal(v) for v in items]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and key in ("after", "addr"):
        return _raw(value)
    return value


def _raw(text: str) -> Any:
    for decoded in (text, _unbased(text)):
        try:
            return _normal(json.loads(decoded))
        except ValueError:
            continue
    return text


def _unbased(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""
