"""Body of an alert: the JSON of ``docs/alerts.md``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from conduit_dagster.alerts.decide import Alert
from conduit_dagster.config.scalars import masked

_ERROR: Final = ("code", "message", "node", "place", "fix")
_LONGEST = 1000
_SLACK: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def body(alert: Alert, project: str, now_ns: int) -> dict[str, Any]:
    """Return the alert as JSON, without secrets. ``text`` is for people, in Slack's markup."""
    one = alert.standing
    error = None if one.error is None else {name: _masked(one.error.get(name)) for name in _ERROR}
    return {
        "text": _slack(_degraded(alert, error) if alert.kind == "degraded" else _letters(alert)),
        "alert": alert.kind,
        "project": project,
        "pipeline": one.pipeline,
        "at": _when(now_ns),
        "status": one.status,
        "reason": one.reason,
        "error": error,
        "dead_letters": {
            "total": one.dead_letters,
            "new": alert.new,
            "since": _when(alert.since_ns) if alert.since_ns else None,
        },
    }


def _degraded(alert: Alert, error: dict[str, Any] | None) -> str:
    head = f"{alert.standing.pipeline} is degraded"
    if error is None:
        return head
    node = f" in {error['node']}" if error["node"] else ""
    fix = f"\nfix: {error['fix']}" if error["fix"] else ""
    return f"{head}: {error['code']}{node}: {_short(error['message'])}{_short(fix)}"


def _letters(alert: Alert) -> str:
    one = alert.standing
    noun = "dead letter" if alert.new == 1 else "dead letters"
    return f"{one.pipeline}: {alert.new:,} new {noun} since {_when(alert.since_ns)}, {one.dead_letters:,} in all"


def _masked(value: Any) -> Any:
    return masked(value) if isinstance(value, str) else value


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _slack(text: str) -> str:
    """Escape text for Slack: a record's text must not notify the whole channel."""
    return "".join(_SLACK.get(character, character) for character in text)


def _when(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
