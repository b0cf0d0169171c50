"""The package's version here and on Spark's workers, which read what this process plans and stage what it publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from conduit_dagster.recovery.errors import FatalError


def _installed() -> str:
    try:
        return version("conduit-dagster")
    except PackageNotFoundError:
        return ""


# at import, which the parent of Spark's workers does for all of them
PACKAGE_VERSION: Final = _installed()
"""The installed version; empty for a checkout that is only on Python's path."""


def in_same_version(
    expected: str, function: Callable[[Iterator[Any]], Iterator[Any]], batches: Iterator[Any]
) -> Iterator[Any]:
    """Run a task's function. Raises ``FatalError`` (``spark.version_differs``) where another version is installed."""
    if PACKAGE_VERSION and expected and expected != PACKAGE_VERSION:
        raise FatalError(
            f"Spark's workers have conduit-dagster {PACKAGE_VERSION}, this process has {expected}",
            code="spark.version_differs",
            fix="install the same version in both; restart Spark if its workers keep running",
        )
    return function(batches)
