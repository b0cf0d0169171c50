"""Times as text: how long ago something was, and when something is due."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_LATE = 60.0


def span(seconds: float) -> str:
    """Return a duration in its largest whole unit: ``40 s``, ``5 min``, ``3 h``, ``12 d``."""
    whole = max(0, round(seconds))
    size, name = next((one for one in _UNITS if whole >= one[0]), _UNITS[-1])
    return f"{whole // size} {name}"


def ago(at_ns: int, now_ns: int) -> str:
    """Return how long ago it was: ``5 min ago``; empty for 0, which means never."""
    return f"{span((now_ns - at_ns) / 1e9)} ago" if at_ns else ""


def due(at_ns: int, now_ns: int) -> str:
    """Return when it is due: ``in 40 s``, ``now``, or, once a minute has passed, ``due 5 min ago``."""
    late = (now_ns - at_ns) / 1e9
    if late < 0:
        return f"in {span(-late)}"
    return "now" if late < _LATE else f"due {ago(at_ns, now_ns)}"
