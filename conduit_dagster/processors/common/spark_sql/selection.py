"""The new document of a record: fields kept from the old one and values computed by Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conduit_dagster.processors.common.spark_sql.statement import PARTS, Computed, Fields, Item, Kept
from conduit_dagster.record import Record, copy_document

Part = Callable[[Any, Mapping[str, Any], dict[str, Any]], None]


class DocumentSelection:
    """Builder of new documents, with fields in the order of the query."""

    def __init__(self, items: Sequence[Item]) -> None:
        kept = Counter(item.source for item in items if isinstance(item, Kept))
        whole = any(isinstance(item, Fields) for item in items)
        # a field selected twice is copied, so that a later change touches only one of the two
        self._parts = [_part(item, whole or kept[getattr(item, "source", "")] > 1) for item in items]
        self.reads_position = kept["_position"] > 0

    def of(self, record: Record, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new document of a record whose ``after`` is a document."""
        made: dict[str, Any] = {}
        for part in self._parts:
            part(record, results, made)
        return made


def _part(item: Item, twice: bool) -> Part:
    match item:
        case Fields(without):
            return _fields(without)
        case Kept(source, name):
            return _own(source, name) if source in PARTS else _kept(source, name, twice)
        case Computed(place, name, _):
            return _computed(f"o{place}", name)


def _fields(without: frozenset[str]) -> Part:
    def part(record: Any, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        del results
        for name, value in record.after.items():
            if name not in without:
                made.setdefault(name, value)

    def whole(record: Any, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        if made:
            part(record, results, made)
        else:
            made.update(record.after)

    return part if without else whole


def _kept(source: str, name: str, twice: bool) -> Part:
    def part(record: Any, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        del results
        value = record.after.get(source)
        made[name] = copy_document({"": value})[""] if twice else value

    return part


def _own(source: str, name: str) -> Part:
    def part(record: Record, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        del results
        if source == "_metadata":
            made[name] = dict(record.metadata)
        else:
            made[name] = record.operation if source == "_operation" else str(record.position)

    return part


def _computed(result: str, name: str) -> Part:
    def part(record: Any, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        del record
        made[name] = results[result]

    return part
