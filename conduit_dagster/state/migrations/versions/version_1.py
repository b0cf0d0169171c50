"""Version 1, the oldest: every store of this version was created from ``state/tables.py``."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing: no older version exists."""
