"""Version 2: a step's dead letters get their rows after the step is prepared, some thousand at a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the number of indexed letters of a file (so far, all of them). Index letters by file and by end."""
    indexed = sa.Column("indexed", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("conduit_dead_letter_parts", indexed)
    op.execute("UPDATE conduit_dead_letter_parts SET indexed = letters")
    op.create_index("conduit_dead_letters_by_part", "conduit_dead_letters", ["pipeline", "part"])
    op.create_index("conduit_dead_letters_by_end", "conduit_dead_letters", ["pipeline", "closed_ns"])
