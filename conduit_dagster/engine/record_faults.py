"""Records that an author's code gave and no step can hold, and forms of them that a step can."""

from __future__ import annotations

import json
import reprlib
from typing import Any

import msgspec

from conduit_dagster.engine.dead_letters.letter_layout import clean, jsonable
from conduit_dagster.json_values import finite, is_json
from conduit_dagster.record import OPERATIONS, Nack, Record, structure_fault, structure_faults

_PARTS = ("after", "key", "before")
SHOWN = frozenset({"record.invalid", "record.not_json", "format.invalid"})
"""Codes of records of which, once they are nacked at their source, only a form to show is left."""


def source_faults(records: list[Record]) -> dict[int, Nack]:
    """Return the nack of each record that no step can hold: place in the block to nack.

    Numbers that JSON lacks become text, before an encoder turns them into null.
    """
    nacks = {place: Nack("record.invalid", fault) for place, fault in structure_faults(records).items()}
    for place, record in enumerate(records):
        if place in nacks:
            continue
        if record.operation not in OPERATIONS:
            nacks[place] = unknown_operation(record)
        elif _is_exact(record.after) and _is_exact(record.key) and _is_exact(record.before):
            continue
        elif not all(_make_finite(record, part) for part in _PARTS):
            nacks[place] = not_json()
    return nacks


def _is_exact(value: Any) -> bool:
    try:
        return type(value) is not dict or is_json(value)
    except RecursionError:
        return False


def _make_finite(record: Record, part: str) -> bool:
    """Return whether an encoder takes the part, with the numbers that JSON lacks as text from now on."""
    value = getattr(record, part)
    if _is_exact(value):
        return True
    made = finite(value)
    setattr(record, part, made)
    try:
        msgspec.json.encode(made)  # a date has no JSON of its own, but a text
    except RecursionError:
        return not _is_cyclic(made)
    except Exception:  # noqa: BLE001  # whatever an author's value raises
        return False
    return True


def _is_cyclic(value: Any) -> bool:
    try:
        json.dumps(value, default=repr, skipkeys=True)
    except RecursionError:  # only nested deeply
        return False
    except ValueError:
        return True
    return False


def not_json() -> Nack:
    """Return the nack of a record with a value of a kind that JSON does not have."""
    return Nack("record.not_json", "the record holds a value that JSON cannot hold")


def unknown_operation(record: Record) -> Nack:
    """Return the nack of a record whose operation OpenCDC does not have."""
    return Nack("record.operation", f"operation {record.operation!r} is none of {', '.join(OPERATIONS)}")


def storable(record: Record) -> Record:
    """Return the record in a form that a dead letter can hold: an author's code may have put anything into it."""
    if structure_fault(record) is None and all(map(_is_data, _parts(record))):
        return record
    after, key, before = (part if _is_data(part) else _shown(part) for part in _parts(record))
    return Record(record.position, _texts(record.metadata), after, key, before, str(record.operation))


def loggable(record: Record) -> Record:
    """Return the record in a form that a log can hold: text that JSON lacks is escaped, other values are shown."""
    position, metadata = clean(str(record.position)), jsonable(_texts(record.metadata))
    after, key, before = map(_jsonable, _parts(record))
    return Record(position, metadata, after, key, before, clean(str(record.operation)))


def _parts(record: Record) -> tuple[Any, Any, Any]:
    return record.after, record.key, record.before


def _texts(metadata: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}


def _jsonable(value: Any) -> Any:
    if value is None or type(value) is bytes:
        return value
    try:
        made = jsonable(msgspec.to_builtins(value))
        msgspec.json.encode(made)
    except Exception:  # noqa: BLE001  # whatever an author's value raises
        return _shown(value)
    return made if type(made) is dict else _shown(value)


def _is_data(value: Any) -> bool:
    """Return whether a dead letter can show the value, if not exactly, such as NaN: no cycle, no endless number."""
    if type(value) is not dict:
        return value is None or type(value) is bytes
    try:
        json.dumps(msgspec.to_builtins(value), skipkeys=True)
    except Exception:  # noqa: BLE001  # whatever an author's value raises
        return False
    return True


def _shown(value: Any) -> bytes:
    try:
        return reprlib.repr(value).encode("utf-8", "backslashreplace")
    except Exception:  # noqa: BLE001  # an integer that Python does not print, an author's own __repr__
        return type(value).__name__.encode()
