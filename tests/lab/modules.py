"""The project's own modules, for tests of their dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


PACKAGE = "conduit_dagster"
TOPS = (PACKAGE, "assets", "resources", "sensors")
"""Folders with modules of the package, which has links to the other three."""


def modules() -> Iterator[tuple[str, Path]]:
    """Yield dotted name and file of each module, packages included."""
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield name if top == PACKAGE else f"{PACKAGE}.{name}", path
