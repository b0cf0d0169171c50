"""The history of a pipeline: writing events, with retention by age and number; reading them; one-line summaries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import sqlalchemy as sa

from conduit_dagster.secret_values import hide_in, masked
from conduit_dagster.state.database import reading
from conduit_dagster.state.tables import history, pipelines

_OPTION: Final = "conduit_history"
SOURCE_CHANGED: Final = "source_changed"
REMEMBERED: Final = 100
"""Number of source changes kept regardless of age: a source that returns to earlier data resumes where it was left."""
_STRIDE, _BITS, _LEVEL = 0x9E3779B1, 0xFFFFFFFF, 26


@dataclass(frozen=True)
class HistoryRetention:
    """Retention of a pipeline's history."""

    keep: float = 90 * 86_400.0
    """Seconds."""
    most: int = 10_000

    def oldest(self, now_ns: int) -> int:
        """Return the time, in ns, before which events have expired."""
        return max(0, now_ns - int(self.keep * 1e9))


def retain(engine: sa.Engine, retention: HistoryRetention) -> None:
    """Set the retention of the history for everything written through ``engine`` from now on."""
    engine.update_execution_options(**{_OPTION: retention})


def retention_of(options: Any) -> HistoryRetention:
    """Return the value set by :func:`retain`, or the default. ``options``: of an engine or a connection."""
    found = options.get(_OPTION)
    return found if isinstance(found, HistoryRetention) else HistoryRetention()


_EVENT = sa.insert(history).returning(history.c.id)


def record_event(connection: sa.Connection, pipeline: str, event: str, **detail: Any) -> None:
    """Add an event, in the transaction of its change. About every 64th event prunes the pipeline's old ones."""
    now = time.time_ns()
    values = {"pipeline": pipeline, "at_ns": now, "event": event, "detail": json.dumps(hide_in(detail))}
    number = connection.execute(_EVENT, values).scalar_one()
    if _is_due(number):
        prune(connection, pipeline, retention_of(connection.get_execution_options()), now)


def update_event(connection: sa.Connection, pipeline: str, event: str, **detail: Any) -> None:
    """Give the newest event of a kind new details, in the transaction of a change that belongs to it."""
    mine = (history.c.pipeline == pipeline, history.c.event == event)
    newest = sa.select(sa.func.max(history.c.id)).where(*mine)
    number = connection.execute(newest).scalar_one()
    text = json.dumps(hide_in(detail))
    connection.execute(sa.update(history).where(history.c.id == number).values(detail=text))


def _is_due(number: int) -> bool:
    # pipelines share the numbers: hashing keeps a pipeline that gets every n-th one from being always or never due
    return (number * _STRIDE & _BITS) >> _LEVEL == 0


def prune(connection: sa.Connection, pipeline: str, retention: HistoryRetention, now_ns: int) -> int:
    """Delete events that are too old or too many; return how many were deleted."""
    mine = history.c.pipeline == pipeline
    newest = sa.select(history.c.id).where(mine).order_by(history.c.id.desc())
    cut = newest.offset(retention.most).limit(1).scalar_subquery()
    changes = newest.where(history.c.event == SOURCE_CHANGED).limit(REMEMBERED)
    gone = sa.or_(history.c.at_ns < retention.oldest(now_ns), history.c.id <= cut)
    kept = history.c.id.not_in(changes)
    return connection.execute(sa.delete(history).where(mine, gone, kept)).rowcount


Detail = Mapping[str, Any]
_VALUE = 80
_LINE = 400


def said(event: str, detail: Detail) -> str:
    """Return an event as one line: ``failed: chaos.injected in orders:in: ...``. ``detail`` is not masked here."""
    try:
        told = _SAID.get(event, _plain)(detail)
    except (KeyError, TypeError, ValueError):
        told = _plain(detail)  # written by another version
    text = " ".join(f"{event}: {told}".split()) if told else event
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"


def _plain(detail: Detail) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in detail.items() if value not in (None, ""))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE else text[: _VALUE - 1] + "…"


def _error(error: Detail) -> str:
    node = f" in {error['node']}" if error.get("node") else ""
    return f"{error['code']}{node}: {error['message']}"


def _degraded(detail: Detail) -> str:
    why = detail.get("given_up") or (f"by {detail['reason']}" if detail.get("reason") else "")
    return ", ".join(part for part in (why, _error(detail["error"]) if detail.get("error") else "") if part)


def _by(detail: Detail) -> str:
    return f"by {detail['by']}" if detail.get("by") else ""


_ASKED: Final = {"force": "stop by force", "renew": "begin again with its changed file"}
_SAID: Final[dict[str, Callable[[Detail], str]]] = {
    "failed": _error,
    "waiting": lambda detail: f"restart {detail['attempt']} in {duration(detail['delay'])}",
    "restarted": lambda detail: f"restart {detail['attempt']}, after failure {detail['failure']}, as {detail['run']}",
    "recovered": lambda detail: f"after restart {detail['attempt']}",
    "degraded": _degraded,
    "stopped": lambda detail: f"by the {detail['reason']}" if detail.get("reason") else "",
    "asked": lambda detail: f"to {_ASKED.get(detail['to'], detail['to'])} {_by(detail)}".rstrip(),
    "started": lambda detail: f"as {detail['run']}" if detail.get("run") else "",
    "sent_again": lambda detail: (
        f"{detail['consumer']}, offsets {detail['first']} to {detail['upto'] - 1} of {detail['source']}"
    ),
    "provisioned": lambda detail: str(detail.get("file") or ""),
    "deleting": lambda detail: _by(detail) + (f"; lost: {'; '.join(detail['lost'])}" if detail.get("lost") else ""),
    "deleted": _by,
    "deprovisioned": lambda detail: f"{detail['file']} is gone" if detail.get("file") else "",
}


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``4s``, ``500ms``, ``2m30s``, ``1h5m``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    left, parts = round(seconds), list[str]()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number}{unit}" if number else "")
    return "".join(parts[:2])


PROVISIONED: Final = "provisioned"
DEPROVISIONED: Final = "deprovisioned"
DELETING: Final = "deleting"
DELETED: Final = "deleted"
_AWAY: Final = (DEPROVISIONED, DELETED)
_PRESENCE: Final = (PROVISIONED, *_AWAY)


@dataclass(frozen=True)
class Event:
    """An event, with secrets masked."""

    at_ns: int
    event: str
    detail: dict[str, Any]


def events(engine: sa.Engine, pipeline: str, limit: int, since_ns: int = 0) -> list[Event]:
    """Return the newest events in chronological order; none for a pipeline that never ran."""
    retention = retention_of(engine.get_execution_options())
    oldest = max(since_ns, retention.oldest(time.time_ns()))
    mine = (history.c.pipeline == pipeline, history.c.at_ns >= oldest)
    # expired events are not shown, even if they are not deleted yet
    newest = sa.select(history).where(*mine).order_by(history.c.id.desc()).limit(min(limit, retention.most))
    with reading(engine) as connection:
        rows = connection.execute(newest).mappings().all()
    return [Event(row["at_ns"], row["event"], _masked(json.loads(row["detail"]))) for row in reversed(rows)]


def newest_event(connection: sa.Connection, pipeline: str, *kinds: str) -> Event | None:
    """Return the newest of a pipeline's events of these kinds; None if it has none."""
    # one query for each: together they would read the pipeline's whole history
    numbers = [
        sa.select(sa.func.max(history.c.id)).filter_by(event=kind, pipeline=pipeline).scalar_subquery()
        for kind in kinds
    ]
    found = sa.select(history).where(history.c.id.in_(numbers)).order_by(history.c.id.desc()).limit(1)
    row = connection.execute(found).mappings().one_or_none()
    return None if row is None else Event(row["at_ns"], row["event"], _masked(json.loads(row["detail"])))


def newest_ns(engine: sa.Engine) -> int:
    """Return the latest time of any pipeline's event, by the clock of its machine; 0 if there is none."""
    with reading(engine) as connection:
        return connection.execute(sa.select(sa.func.max(history.c.at_ns))).scalar_one() or 0


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {name: _masked(one) for name, one in cast(dict[str, Any], value).items()}
    return [_masked(one) for one in cast(list[Any], value)] if isinstance(value, list) else value


def deprovision(engine: sa.Engine, pipeline: str) -> bool:
    """Record that the pipeline's file is missing; return False if already recorded, or if the pipeline is unknown.

    Stops nothing: the caller has stopped the pipeline. Its state is kept in case its file comes back.
    """
    with engine.begin() as connection:
        # locked: of two concurrent calls only one records it
        mine = sa.select(pipelines.c.file).where(pipelines.c.pipeline == pipeline).with_for_update()
        row = connection.execute(mine).first()
        if row is None or _is_away(connection, pipeline):
            return False
        record_event(connection, pipeline, DEPROVISIONED, file=row.file)
    return True


def provision(connection: sa.Connection, pipeline: str, file: str, first: bool) -> None:
    """Record that the pipeline exists if this is its ``first`` run or it was away; within its start."""
    if first or _is_away(connection, pipeline):
        record_event(connection, pipeline, PROVISIONED, file=file)


def _is_away(connection: sa.Connection, pipeline: str) -> bool:
    newest = newest_event(connection, pipeline, *_PRESENCE)
    return newest is not None and newest.event in _AWAY


def gone(engine: sa.Engine) -> set[str]:
    """Return the pipelines that were deprovisioned or deleted and have not come back."""
    return _whose_newest_is(engine, _AWAY)


def deleted(engine: sa.Engine) -> set[str]:
    """Return the pipelines that were deleted and have not come back."""
    return _whose_newest_is(engine, (DELETED,))


def _whose_newest_is(engine: sa.Engine, kinds: Sequence[str]) -> set[str]:
    last = sa.select(sa.func.max(history.c.id)).where(history.c.event.in_(_PRESENCE)).group_by(history.c.pipeline)
    found = sa.select(history.c.pipeline).where(history.c.id.in_(last), history.c.event.in_(kinds))
    with reading(engine) as connection:
        return set(connection.execute(found).scalars())


def restarts_of(connection: sa.Connection, pipeline: str) -> int | None:
    """Return the total number of restarts, from the newest restart event; None if the history has none."""
    newest = newest_event(connection, pipeline, "restarted")
    # an event of an older version has no total
    return None if newest is None else int(newest.detail.get("total", 1))
