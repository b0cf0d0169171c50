"""Version 4: which code location launches a run, where several have loaded the project."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the table, empty."""
    op.create_table(
        "conduit_launches",
        sa.Column("pipeline", sa.String(128), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("run_key", sa.Text(), nullable=False),
        sa.Column("launcher", sa.Text(), nullable=False),
    )
