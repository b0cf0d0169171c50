"""Version 5: an index of events by kind, so that a long history is not searched for the few that a query is about."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the index."""
    op.create_index("conduit_history_by_event", "conduit_history", ["event", "pipeline", "id"])
