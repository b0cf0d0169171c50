"""Version 3: values that positions refer to by digest, and a new table name for the deliveries of steps.

The rename also stops an older program, which would not look for such values.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table. Stored positions are unchanged: the next step of a source writes the new form.

    The rename lets a destination have its table ``conduit_deliveries`` in the store's schema.
    """
    op.rename_table("conduit_deliveries", "conduit_step_deliveries")
    op.create_table(
        "conduit_kept_values",
        sa.Column("pipeline", sa.String(128), primary_key=True),
        sa.Column("source", sa.String(256), primary_key=True),
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("used_ns", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
    )
