"""Changes that other processes may make to the lease of a pipeline."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state import tables
from conduit_dagster.state.lease import Lease


def owner_of(database: sa.Engine) -> Any:
    """Return the owner of the only pipeline."""
    with database.connect() as connection:
        return json.loads(connection.execute(sa.select(tables.pipelines.c.owner)).scalar_one())


def change_owner(database: sa.Engine, **changes: Any) -> None:
    """Change the owner of the only pipeline as if another process had taken the lease."""
    owner = json.dumps({**owner_of(database), **changes})
    with database.begin() as connection:
        connection.execute(sa.update(tables.pipelines).values(owner=owner))


def silence(lease: Lease) -> None:
    """Stop the heartbeat without releasing, like a frozen process."""
    lease._ended.set()
    lease._thread.join()


def heartbeat(database: sa.Engine) -> int:
    """Return the owner's heartbeat count."""
    with database.connect() as connection:
        return connection.execute(sa.select(tables.pipelines.c.heartbeat)).scalar_one()
