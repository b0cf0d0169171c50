"""What other processes may do to the lease of a pipeline."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state import tables
from conduit_dagster.state.lease import Lease


def owner_of(database: sa.Engine) -> Any:
    with database.connect() as connection:
        return json.loads(connection.execute(sa.select(tables.pipelines.c.owner)).scalar_one())


def change_owner(database: sa.Engine, **changes: Any) -> None:
    """As if another process had taken the lease."""
    owner = json.dumps({**owner_of(database), **changes})
    with database.begin() as connection:
        connection.execute(sa.update(tables.pipelines).values(owner=owner))


def silence(lease: Lease) -> None:
    """Ends the heartbeat without releasing, as a frozen process would."""
    lease._ended.set()
    lease._thread.join()


def heartbeat(database: sa.Engine) -> int:
    """How often the owner has shown itself."""
    with database.connect() as connection:
        return connection.execute(sa.select(tables.pipelines.c.heartbeat)).scalar_one()
