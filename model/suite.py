"""Every case of every model, and the forms in which they are run."""

from __future__ import annotations

from collections.abc import Iterator

from model.case import Case
from model.changes import cases as changes
from model.protocol import cases as protocol

FORMS = ("short", "all", "before", "rules", "mutants")
"""Selections of cases; ``short`` is what CI runs."""


def every() -> Iterator[Case]:
    """Return every case."""
    yield from changes.cases()
    yield from protocol.cases()


def chosen(form: str, part: str = "") -> Iterator[Case]:
    """Return the cases of a form whose names contain ``part``."""
    for case in every():
        if part in case.name and (form in ("all", case.group) or (form == "short" and case.is_short)):
            yield case
