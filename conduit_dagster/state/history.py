"""Reading the history of a pipeline, and the two events of its life that no run tells of."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Final, cast

import sqlalchemy as sa

from conduit_dagster.config.secrets import masked
from conduit_dagster.state.database import reading
from conduit_dagster.state.events import record_event, retention_of
from conduit_dagster.state.schema import history, pipelines

PROVISIONED: Final = "provisioned"
DEPROVISIONED: Final = "deprovisioned"
_BOTH: Final = (PROVISIONED, DEPROVISIONED)


@dataclass(frozen=True)
class Event:
    """One event, without secrets."""

    at_ns: int
    event: str
    detail: dict[str, Any]


def events(engine: sa.Engine, pipeline: str, limit: int, since_ns: int = 0) -> list[Event]:
    """The newest events that are kept, the newest last; none of a pipeline that never ran."""
    retention = retention_of(engine.get_execution_options())
    oldest = max(since_ns, retention.oldest(time.time_ns()))
    mine = (history.c.pipeline == pipeline, history.c.at_ns >= oldest)
    # what is to go is not shown any more, though it goes later only
    newest = sa.select(history).where(*mine).order_by(history.c.id.desc()).limit(min(limit, retention.most))
    with reading(engine) as connection:
        rows = connection.execute(newest).mappings().all()
    return [Event(row["at_ns"], row["event"], _masked(json.loads(row["detail"]))) for row in reversed(rows)]


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {name: _masked(one) for name, one in cast(dict[str, Any], value).items()}
    return [_masked(one) for one in cast(list[Any], value)] if isinstance(value, list) else value


def deprovision(engine: sa.Engine, pipeline: str) -> bool:
    """Records that the pipeline's file is gone, once; False where that is known, or the pipeline is not.

    Stops nothing: whoever calls it has stopped the pipeline. Its state stays, for the day its file comes back.
    """
    with engine.begin() as connection:
        # locked: of two that find out at the same moment one says it
        mine = sa.select(pipelines.c.file).where(pipelines.c.pipeline == pipeline).with_for_update()
        row = connection.execute(mine).first()
        if row is None or _newest(connection, pipeline, *_BOTH) == DEPROVISIONED:
            return False
        record_event(connection, pipeline, DEPROVISIONED, file=row.file)
    return True


def provision(connection: sa.Connection, pipeline: str, file: str, first: bool) -> None:
    """Records that the pipeline is there, where it is ``first`` seen or was gone. In the transaction of its start."""
    if first or _newest(connection, pipeline, *_BOTH) == DEPROVISIONED:
        record_event(connection, pipeline, PROVISIONED, file=file)


def _newest(connection: sa.Connection, pipeline: str, *kinds: str) -> str | None:
    mine = (history.c.pipeline == pipeline, history.c.event.in_(kinds))
    newest = sa.select(history.c.event).where(*mine).order_by(history.c.id.desc()).limit(1)
    return connection.execute(newest).scalar_one_or_none()


def gone(engine: sa.Engine) -> set[str]:
    """The pipelines that were deprovisioned, and did not come back."""
    last = sa.select(sa.func.max(history.c.id)).where(history.c.event.in_(_BOTH)).group_by(history.c.pipeline)
    away = sa.select(history.c.pipeline).where(history.c.id.in_(last), history.c.event == DEPROVISIONED)
    with reading(engine) as connection:
        return set(connection.execute(away).scalars())


def restarts_of(connection: sa.Connection, pipeline: str) -> int | None:
    """How many restarts there were in all, as its newest one tells; None where no restart is in the history."""
    mine = (history.c.pipeline == pipeline, history.c.event == "restarted")
    newest = sa.select(history.c.detail).where(*mine).order_by(history.c.id.desc()).limit(1)
    text = connection.execute(newest).scalar_one_or_none()
    # one of an older version does not say it
    return None if text is None else int(json.loads(text).get("total", 1))
