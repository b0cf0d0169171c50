"""The project's own modules, for tests of how they hang together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules() -> Iterator[tuple[str, Path]]:
    """Dotted name and file of each, packages included."""
    for top in ("conduit_dagster", "assets", "resources", "sensors"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path
