"""The order of a run of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

_FAST, _SLOW, _WITH_KAFKA = range(3)


def sort_files(items: list[pytest.Item]) -> None:
    """Move files with tests marked ``slow`` behind all others, and those that need the Kafka broker to the end.

    A broker takes 4 % of a core while nobody uses it, in each of the processes side by side.
    """
    kinds: dict[Path, int] = {}
    for item in items:
        kinds[item.path] = max(kinds.get(item.path, _FAST), _kind(item))
    places = {path: place for place, path in enumerate(kinds)}

    def key(item: pytest.Item) -> tuple[int, int]:
        kind, place = kinds[item.path], places[item.path]
        # the last of them take longest, and would run alone
        return kind, -place if kind == _WITH_KAFKA else place

    items.sort(key=key)


def _kind(item: pytest.Item) -> int:
    if "kafka_server" in getattr(item, "fixturenames", ()):
        return _WITH_KAFKA
    return _SLOW if item.get_closest_marker("slow") else _FAST
