"""Version 5: every generation that a source was given, so that none is given twice."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Takes over the generations that sources have, and those that the history knows of data that they left."""
    made = op.create_table(
        "conduit_generations",
        sa.Column("pipeline", sa.String(128), primary_key=True),
        sa.Column("source", sa.String(256), primary_key=True),
        sa.Column("generation", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
    )
    known: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in (*_left(), *_current()):
        known[row["pipeline"], row["source"], row["generation"]] = row
    if known:
        op.bulk_insert(made, list(known.values()))


def _left() -> list[dict[str, Any]]:
    text = sa.text("SELECT pipeline, detail FROM conduit_history WHERE event = 'source_changed' ORDER BY id")
    found: list[dict[str, Any]] = []
    for pipeline, detail in op.get_bind().execute(text):
        known = json.loads(detail)
        if "generation" in known:
            unit = json.dumps({key: value for key, value in known["was"].items() if key != "log"}, sort_keys=True)
            found.append(_row(pipeline, known["source"], known["generation"], unit, json.dumps(known["position"])))
    return found


def _current() -> list[dict[str, Any]]:
    text = sa.text("SELECT pipeline, source, generation, unit FROM conduit_sources")
    rows = op.get_bind().execute(text)
    return [_row(pipeline, source, generation, unit, "") for pipeline, source, generation, unit in rows]


def _row(pipeline: str, source: str, generation: int, unit: str, position: str) -> dict[str, Any]:
    return {"pipeline": pipeline, "source": source, "generation": generation, "unit": unit, "position": position}
