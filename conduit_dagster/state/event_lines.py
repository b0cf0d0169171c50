"""What an event of a pipeline's history says, in one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

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
