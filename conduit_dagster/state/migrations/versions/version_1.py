"""The tables of version 1: stores that were made before there were migrations have them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger
_BY_PIPELINE = "conduit_history_by_pipeline"


def _key(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), primary_key=True)


def _text(name: str, length: int | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text() if length is None else sa.String(length), nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, _NUMBER, nullable=False)


def _step() -> sa.Column[int]:
    return sa.Column("step", _NUMBER, primary_key=True)


def upgrade() -> None:
    """Creates all of them."""
    op.create_table("conduit_meta", _key("name", 64), _text("value"))
    _pipelines()
    _steps()
    _dead_letters()
    op.create_table("conduit_owners", _key("thing", 768), _text("pipeline", 128), _text("consumer", 256))
    number = _NUMBER().with_variant(sa.Integer, "sqlite")
    identity = sa.Column("id", number, primary_key=True, autoincrement=True)
    history = (_text("pipeline", 128), _number("at_ns"), _text("event", 64), _text("detail"))
    op.create_table("conduit_history", identity, *history)
    op.create_index(_BY_PIPELINE, "conduit_history", ["pipeline", "id"])


def _pipelines() -> None:
    op.create_table(
        "conduit_pipelines",
        _key("pipeline", 128),
        _number("epoch"),
        _number("heartbeat"),
        _text("owner"),
        _text("status", 16),
        _text("reason", 16),
        _text("error"),
        _number("next_step"),
        _text("window"),
        _text("file"),
        _number("updated_ns"),
    )
    op.create_table(
        "conduit_sources",
        _key("pipeline", 128),
        _key("source", 256),
        _number("generation"),
        _text("unit"),
        _text("position"),
        *(_number(name) for name in ("records", "acked", "filtered", "nacked")),
    )
    consumers = (_text("kind", 8), _number("delivered"), _number("step"), _text("target"))
    op.create_table("conduit_consumers", _key("pipeline", 128), _key("consumer", 256), *consumers)


def _steps() -> None:
    op.create_table(
        "conduit_steps",
        _key("pipeline", 128),
        _step(),
        _text("state", 8),
        _text("plan"),
        _text("decision"),
        _number("planned_ns"),
        _number("done_ns"),
    )
    delivery = (_key("consumer", 256), _text("hash", 64), _text("state", 8))
    op.create_table("conduit_deliveries", _key("pipeline", 128), _step(), *delivery)


def _dead_letters() -> None:
    op.create_table(
        "conduit_dead_letters",
        _key("pipeline", 128),
        _step(),
        sa.Column("number", sa.Integer, primary_key=True),
        _text("source", 256),
        _number("generation"),
        _text("position"),
        _number("offset"),
        _text("node", 512),
        _text("code", 128),
        _text("message"),
        _number("at_ns"),
    )
