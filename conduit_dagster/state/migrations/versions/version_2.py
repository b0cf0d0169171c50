"""Version 2: deliveries in parts, the owner's last transaction, offsets per namespace, the commit log."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_NUMBER = sa.BigInteger
_OLD = "conduit_deliveries_1"


def _key(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), primary_key=True)


def _text(name: str, length: int | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text() if length is None else sa.String(length), nullable=False)


def _number(name: str, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, _NUMBER, primary_key=key, nullable=False)


def upgrade() -> None:
    """Keeps all rows; a store that no project has claimed yet gets the id by which its own one will know it."""
    op.add_column("conduit_pipelines", sa.Column("txn", sa.String(32), nullable=False, server_default=""))
    _deliveries()
    _offsets()
    _logs()
    meta = sa.table("conduit_meta", sa.column("name"), sa.column("value"))
    op.execute(meta.insert().values(name="project", value=secrets.token_hex(16)))


def _deliveries() -> None:
    # SQLite can't change a primary key: on both databases the table is made anew around a copy of its rows
    op.execute(f"CREATE TABLE {_OLD} AS SELECT * FROM conduit_deliveries")
    op.drop_table("conduit_deliveries")
    op.create_table(
        "conduit_deliveries",
        _key("pipeline", 128),
        _number("step", key=True),
        _key("consumer", 256),
        sa.Column("skip", _NUMBER, primary_key=True, autoincrement=False),
        _text("hash", 64),
        _text("state", 8),
        _number("handled"),
        _text("pending"),
        _text("staged"),
    )
    op.execute(
        "INSERT INTO conduit_deliveries (pipeline, step, consumer, skip, hash, state, handled, pending, staged)"
        f" SELECT pipeline, step, consumer, 0, hash, state, 0, '', '' FROM {_OLD}"
    )
    op.drop_table(_OLD)


def _offsets() -> None:
    own = [("pipeline", 128), ("consumer", 256), ("source", 256), ("namespace", 256)]
    op.create_table("conduit_offsets", *(_key(*one) for one in own), _number("offset"), _number("at_ns"))
    own.remove(("consumer", 256))
    rest = (_text("mode", 8), _number("offset"), _number("at_ns"))
    op.create_table("conduit_collections", *(_key(*one) for one in own), *rest)


def _logs() -> None:
    head = (_number("next_offset"), _text("position"))
    op.create_table("conduit_logs", _key("pipeline", 128), _key("source", 256), *head)
    op.create_table(
        "conduit_log_parts",
        _key("pipeline", 128),
        _key("source", 256),
        _number("first", key=True),
        _number("next"),
        _number("segment"),
        _text("name", 256),
        _number("entries"),
        _number("bytes"),
        _text("sha256", 64),
        _number("nacked"),
        sa.Column("compacted", sa.Integer, nullable=False),
        _text("position"),
    )
