"""The history of a pipeline: writing events, kept by age and number; reading them; and each as one line of text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import sqlalchemy as sa

from conduit_dagster.config.scalars import masked
from conduit_dagster.state.database import reading
from conduit_dagster.state.schema import history, pipelines

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


Detail = Mapping[str, Any]
_VALUE = 80
_LINE = 400


def said(event: str, detail: Detail) -> str:
    """One line for people: ``failed: chaos.injected in orders:in: ...``. ``detail`` is shown as it is given."""
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


def _waiting(detail: Detail) -> str:
    return f"restart {detail['attempt']} in {duration(detail['delay'])}"


def _restarted(detail: Detail) -> str:
    return f"restart {detail['attempt']}, after failure {detail['failure']}, as {detail['run']}"


def _degraded(detail: Detail) -> str:
    why = detail.get("given_up") or (f"by {detail['reason']}" if detail.get("reason") else "")
    return ", ".join(part for part in (why, _error(detail["error"]) if detail.get("error") else "") if part)


def _stopped(detail: Detail) -> str:
    return f"by the {detail['reason']}" if detail.get("reason") else ""


def _asked(detail: Detail) -> str:
    by = f" by {detail['by']}" if detail.get("by") else ""
    return f"to {_ASKED.get(detail['to'], detail['to'])}{by}"


_ASKED: Final = {"force": "stop by force", "renew": "begin again with its changed file"}
_SAID: Final[dict[str, Callable[[Detail], str]]] = {
    "failed": _error,
    "waiting": _waiting,
    "restarted": _restarted,
    "recovered": lambda detail: f"after restart {detail['attempt']}",
    "degraded": _degraded,
    "stopped": _stopped,
    "asked": _asked,
    "started": lambda detail: f"as {detail['run']}" if detail.get("run") else "",
    "provisioned": lambda detail: str(detail.get("file") or ""),
    "deprovisioned": lambda detail: f"{detail['file']} is gone" if detail.get("file") else "",
}


def duration(seconds: float) -> str:
    """``4s``, ``500ms``, ``2m30s``, ``1h5m``: the two greatest units."""
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
