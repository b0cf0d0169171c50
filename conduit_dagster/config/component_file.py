"""Pipelines inside a Dagster component's ``defs.yaml``: its attribute ``pipelines``, written as in a pipeline file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from conduit_dagster.config.tree import Mapped

FILE: Final = "defs.yaml"
_INDENTED = re.compile(rb"^[ \t]+[\"']?pipelines[\"']?[ \t]*:", re.MULTILINE)


def attributes_of(tree: Mapped) -> Mapped | None:
    """Return the attributes of a component's document; None for any other document.

    A component is recognised by its structure, not by its type: subclasses have their own names.
    """
    attributes = tree.get("attributes")
    return attributes if isinstance(attributes, Mapped) and isinstance(tree.get("type"), str) else None


def may_hold_pipelines(path: Path) -> bool:
    """Return whether a file may be a component with pipelines, at the cost of reading it. Never raises."""
    try:
        return _INDENTED.search(path.read_bytes()) is not None
    except OSError:
        return False
