"""Version 1, where migrations begin: every store of this version was created whole, from ``state/tables.py``."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing: there is no older store."""
