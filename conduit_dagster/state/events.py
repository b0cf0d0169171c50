"""Writing the history of a pipeline: one row per event of its life, kept by age and number."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from conduit_dagster.state.schema import history

_OPTION: Final = "conduit_history"
SOURCE_CHANGED: Final = "source_changed"
REMEMBERED: Final = 100
"""So many of these are kept whatever their age: a source that means its former data again goes on where it was left."""
_STRIDE, _BITS, _LEVEL = 0x9E3779B1, 0xFFFFFFFF, 26


@dataclass(frozen=True)
class Retention:
    """How much of a pipeline's history is kept."""

    keep: float = 90 * 86_400.0
    """Seconds."""
    most: int = 10_000

    def oldest(self, now_ns: int) -> int:
        """The time, in ns, before which an event is too old."""
        return max(0, now_ns - int(self.keep * 1e9))


def retain(engine: sa.Engine, retention: Retention) -> None:
    """Sets how much of the history is kept, for whatever is written through ``engine`` from here on."""
    engine.update_execution_options(**{_OPTION: retention})


def retention_of(options: Any) -> Retention:
    """What :func:`retain` set; the default where it was not called. ``options``: an engine's, or a connection's."""
    found = options.get(_OPTION)
    return found if isinstance(found, Retention) else Retention()


def record_event(connection: sa.Connection, pipeline: str, event: str, **detail: Any) -> None:
    """Adds an event, in the transaction of what it tells of. At about every 64th one, old ones of the pipeline go."""
    now = time.time_ns()
    values = {"pipeline": pipeline, "at_ns": now, "event": event, "detail": json.dumps(detail)}
    number = connection.execute(history.insert().values(**values).returning(history.c.id)).scalar_one()
    if _is_due(number):
        prune(connection, pipeline, retention_of(connection.get_execution_options()), now)


def _is_due(number: int) -> bool:
    # pipelines share the numbers: spread such that none that writes every n-th one is always, or never, due
    return (number * _STRIDE & _BITS) >> _LEVEL == 0


def prune(connection: sa.Connection, pipeline: str, retention: Retention, now_ns: int) -> int:
    """Removes what is too old or too much; how many events went."""
    mine = history.c.pipeline == pipeline
    newest = sa.select(history.c.id).where(mine).order_by(history.c.id.desc())
    cut = newest.offset(retention.most).limit(1).scalar_subquery()
    changes = newest.where(history.c.event == SOURCE_CHANGED).limit(REMEMBERED)
    gone = sa.or_(history.c.at_ns < retention.oldest(now_ns), history.c.id <= cut)
    kept = history.c.id.not_in(changes)
    return connection.execute(sa.delete(history).where(mine, gone, kept)).rowcount
