"""Cron expressions, checked without a scheduler: those that Dagster's own parser accepts in a schedule."""

from __future__ import annotations

import re

_NICKNAMES = {"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(r"(?P<low>\*|[a-z]{3}|[0-9]{1,2})(?:-(?P<high>[a-z]{3}|[0-9]{1,2}))?(?:/(?P<step>[0-9]{1,3}))?")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)


def cron_problem(text: str) -> str | None:
    """Return the problem of a cron expression, or None. A date that never comes (30 February) is a problem."""
    if text.strip().lower() in _NICKNAMES:
        return None
    fields = text.lower().split()
    if len(fields) != len(_FIELDS):
        return f"it has {len(fields)} fields, not 5"
    for number, field in enumerate(fields):
        problem = _field_problem(number, field)
        if problem is not None:
            return f"{_FIELDS[number][0]}: {problem}"
    return None if _can_come(fields) else "no month has that day"


def _field_problem(number: int, field: str) -> str | None:
    for part in field.split(","):
        problem = None if (number, part) == (2, "l") else _part_problem(number, part)
        if problem is not None:
            return problem
    return None


def _part_problem(number: int, part: str) -> str | None:
    match = _PART.fullmatch(part)
    if match is None:
        return f"{part[:20]!r} is no value, range or step"
    _, lowest, highest, _ = _FIELDS[number]
    low, high = _number(number, match["low"]), _number(number, match["high"] or match["low"])
    if low is None or high is None or not lowest <= low <= high <= highest:
        return f"{part[:20]!r} is not within {lowest}-{highest}"
    if match["step"] is not None and int(match["step"]) == 0:
        return "a step of 0"
    return None


def _number(number: int, text: str) -> int | None:
    _, lowest, _, names = _FIELDS[number]
    if text == "*":
        return lowest
    if text in names:
        return names.index(text) + lowest
    return int(text) if text.isdigit() else None


def _can_come(fields: list[str]) -> bool:
    """Return whether the earliest day exists in one of the months; a day of the week is another way to match."""
    if fields[4] != "*" or "l" in fields[2].split(","):
        return True
    days = [_number(2, re.split("[-/]", part)[0]) or 1 for part in fields[2].split(",")]
    months = [_range(part) for part in fields[3].split(",")]
    return any(min(days) <= _LONGEST[month - 1] for low, high in months for month in range(low, high + 1))


def _range(part: str) -> tuple[int, int]:
    if part.startswith("*"):
        return 1, 12
    low, _, high = part.partition("/")[0].partition("-")
    first = _number(3, low) or 1
    return first, (_number(3, high) or first) if high else (12 if "/" in part else first)
