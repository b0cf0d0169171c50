"""Values that a source's positions refer to by digest: too large to be stored again with every step."""

from __future__ import annotations

import hashlib
import time
from functools import partial

import sqlalchemy as sa

from conduit_dagster.state.database import reading
from conduit_dagster.state.lease import Transactions
from conduit_dagster.state.row_statements import put
from conduit_dagster.state.tables import generations, kept_values, log_parts, logs, sources, steps

_DAY = 24 * 3600 * 10**9
_KEPT_DAYS = 7
"""Days for which a value outlives the last stored position that refers to it: a position may have been printed."""
_REFERRING = (sources.c.position, logs.c.position, generations.c.position, log_parts.c.position, steps.c.plan)
"""Columns whose JSON may refer to values."""


class KeptReader:
    """Reader of the values of one source, for commands without a lease."""

    def __init__(self, engine: sa.Engine, pipeline: str, source: str) -> None:
        self._engine, self._id, self._source = engine, pipeline, source

    def get(self, digest: str) -> bytes | None:
        """Return a value; None if it is missing or damaged."""
        with reading(self._engine) as connection:
            return _value(connection, self._id, self._source, digest)


class KeptStore:
    """The values of one source, for the owner of the pipeline's lease."""

    def __init__(self, transactions: Transactions, pipeline: str, source: str) -> None:
        self._transactions, self._id, self._source = transactions, pipeline, source

    def get(self, digest: str) -> bytes | None:
        """Return a value; None if it is missing or damaged."""
        return self._transactions.read(lambda connection: _value(connection, self._id, self._source, digest))

    def put(self, value: bytes) -> str:
        """Store a value durably and return its digest. Values never change, so that any position may refer to them."""
        digest = hashlib.sha256(value).hexdigest()
        row = {"pipeline": self._id, "source": self._source, "digest": digest, "value": value}
        # an existing value is marked as used: it must not be deleted before the plan refers to it
        self._transactions.run(lambda connection: put(connection, kept_values, [{**row, "used_ns": time.time_ns()}]))
        return digest


def _value(connection: sa.Connection, pipeline: str, source: str, digest: str) -> bytes | None:
    column = kept_values.c
    mine = (column.pipeline == pipeline, column.source == source, column.digest == digest)
    value = connection.execute(sa.select(column.value).where(*mine)).scalar_one_or_none()
    return value if value is not None and hashlib.sha256(value).hexdigest() == digest else None


def forget_unused(transactions: Transactions, pipeline: str, now_ns: int) -> None:
    """Delete the values that no stored position has referred to for a week. Each is checked once a day."""
    column = kept_values.c
    old = sa.select(column.source, column.digest).where(column.pipeline == pipeline, column.used_ns < now_ns - _DAY)
    for source, digest in transactions.read(lambda connection: connection.execute(old).all()):
        mine = (column.pipeline == pipeline, column.source == source, column.digest == digest)
        # checked outside the transaction, which others wait for: only a value that is put again gets new references
        if transactions.read(partial(_is_referred_to, pipeline, digest)):
            work = sa.update(kept_values).where(*mine).values(used_ns=now_ns)
        else:
            work = sa.delete(kept_values).where(*mine, column.used_ns < now_ns - _KEPT_DAYS * _DAY)
        transactions.run(lambda connection, work=work: connection.execute(work))


def _is_referred_to(pipeline: str, digest: str, connection: sa.Connection) -> bool:
    return any(
        connection.execute(
            sa.select(sa.literal(1)).where(column.table.c.pipeline == pipeline, column.contains(digest)).limit(1)
        ).first()
        is not None
        for column in _REFERRING
    )
