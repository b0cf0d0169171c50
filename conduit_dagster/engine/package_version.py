"""The package's version here and on Spark's workers, which read what this process plans and stage what it publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from conduit_dagster.recovery.errors import FatalError


@cache
def package_version() -> str:
    """Return the installed version; empty for a checkout that is only on Python's path."""
    try:
        return version("conduit-dagster")
    except PackageNotFoundError:
        return ""


def in_same_version(
    expected: str, function: Callable[[Iterator[Any]], Iterator[Any]], batches: Iterator[Any]
) -> Iterator[Any]:
    """Run a task's function. Raises ``FatalError`` (``spark.version_differs``) where another version is installed."""
    found = package_version()
    if found and expected and found != expected:
        raise FatalError(
            f"Spark's workers have conduit-dagster {found}, this process has {expected}",
            code="spark.version_differs",
            fix="install the same version in both; restart Spark if its workers keep running",
        )
    return function(batches)
