"""The page ``docs/postgres.md`` as written: its table, its pipeline, its rows and its replay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lab.support import Lab

from conduit_dagster.engine.operate.letters import parse_edit

PAGE = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_does_what_it_says(lab: Lab, postgres_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres_server.create_database()
    monkeypatch.setenv("DATABASE_URL", url)
    [lines], [pipeline], [table, query] = _blocks("json"), _blocks("yaml"), _blocks("sql")
    (lab.root / "customers.jsonl").write_text(lines, encoding="utf-8")
    (lab.root / "pipelines").mkdir(exist_ok=True)
    (lab.root / "pipelines" / "customers.yaml").write_text(pipeline, encoding="utf-8")
    shown = [[cell.strip() for cell in row.split("|")] for row in _blocks("")[-1].splitlines()]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(table.encode())
        assert lab.run("customers").error is None
        assert [[str(cell) for cell in row] for row in connection.execute(query.encode())] == shown
        [(node, reason, _)] = lab.letters()
        assert node == "customers:out"
        assert reason == 'invalid input syntax for type numeric: "much"'
        [edit] = re.findall(r"--set '([^']+)'", PAGE)
        facts = lab.replay("customers", start="node", edits=[parse_edit(edit)])
        assert (facts["replayed"], facts["failed"]) == (1, 0)
        assert connection.execute("SELECT spent FROM customers WHERE id = 3").fetchone() == (0,)
