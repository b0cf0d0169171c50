"""Version 4: dead letters that can be listed by reason, replayed and discarded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Every dead letter so far is open, and its record is only in the queue."""
    for name, kind, default in (
        ("namespace", sa.String(256), ""),
        ("hash", sa.String(64), ""),
        ("missed", sa.Text(), ""),
        ("part", sa.String(128), ""),
        ("line", sa.BigInteger(), "0"),
        ("state", sa.String(10), "open"),
        ("attempt", sa.Integer(), "1"),
        ("replay", sa.BigInteger(), "0"),
        ("note", sa.Text(), ""),
        ("closed_ns", sa.BigInteger(), "0"),
    ):
        op.add_column("conduit_dead_letters", sa.Column(name, kind, nullable=False, server_default=default))
    by_reason = ["pipeline", "state", "node", "code"]
    op.create_index("conduit_dead_letters_by_reason", "conduit_dead_letters", by_reason)
    op.create_index("conduit_dead_letters_by_offset", "conduit_dead_letters", ["pipeline", "source", "offset"])
    op.create_table(
        "conduit_dead_letter_parts",
        sa.Column("pipeline", sa.String(128), primary_key=True),
        sa.Column("part", sa.String(128), primary_key=True),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("letters", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
    )
