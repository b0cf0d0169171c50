"""Version 3: what recovery keeps of a pipeline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds a table; a pipeline without a row in it never failed."""
    op.create_table(
        "conduit_recoveries",
        sa.Column("pipeline", sa.String(128), primary_key=True),
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("reported", sa.String(64), nullable=False),
        sa.Column("failure", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("restarts", sa.Text(), nullable=False),
        sa.Column("restart_at_ns", sa.BigInteger, nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("asked", sa.String(16), nullable=False),
        sa.Column("asked_ns", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )
