"""Claims of launches: of several code locations that have loaded a project, one launches each run."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from conduit_dagster.state.database import reading
from conduit_dagster.state.row_statements import insert_if_absent, update
from conduit_dagster.state.tables import launches, words

LaunchKind = Literal["start", "restart", "tick"]


class LaunchClaim(NamedTuple):
    """Claim of one run by one code location."""

    run_key: str
    """Key of the run: the same in every code location."""
    launcher: str


def claim_launch(
    database: sa.Engine, pipeline: str, kind: LaunchKind, wanted: LaunchClaim, expired: LaunchClaim | None = None
) -> LaunchClaim:
    """Claim a launch and return the claim in effect: ``wanted``, or that of another code location for the same run.

    A claim lasts until the pipeline's next one of this kind, or until it is passed as ``expired``. It may be repeated.
    """
    wanted = LaunchClaim(*map(words, wanted))
    with reading(database) as connection:
        if (found := _found(connection, pipeline, kind)) is not None and _excludes(found, wanted, expired):
            return found
    with database.begin() as connection:
        key: dict[str, Any] = {"pipeline": pipeline, "kind": kind}
        if insert_if_absent(connection, launches, **key, **wanted._asdict()):
            return wanted
        found = _found(connection, pipeline, kind, locked=True)
        if found is not None and _excludes(found, wanted, expired):
            return found
        update(connection, launches, key, wanted._asdict())
    return wanted


def _excludes(found: LaunchClaim, wanted: LaunchClaim, expired: LaunchClaim | None) -> bool:
    return found.run_key == wanted.run_key and found.launcher != wanted.launcher and found != expired


def _found(connection: sa.Connection, pipeline: str, kind: LaunchKind, locked: bool = False) -> LaunchClaim | None:
    mine = sa.select(launches.c.run_key, launches.c.launcher).filter_by(pipeline=pipeline, kind=kind)
    row = connection.execute(mine.with_for_update() if locked else mine).one_or_none()
    return None if row is None else LaunchClaim(*row)
