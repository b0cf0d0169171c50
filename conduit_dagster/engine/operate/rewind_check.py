"""Consequences of continuing a source from another position."""

from __future__ import annotations

from typing import Any, NamedTuple

from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.engine.operate.source_positions import lag_of
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Limit, Source

_LOOK = Limit(1, 65_536)


class Skipped(NamedTuple):
    """Records between two positions."""

    forward: bool | None
    """Whether records would be skipped; None if the source can't tell."""
    amount: int | None = None
    """Amount skipped, if known."""
    unit: str = ""


def check_position(source: Source, name: str, known: Any, wanted: Any) -> None:
    """Raise ``FatalError`` (``positions.invalid``) for an invalid position of this source, as far as it can tell."""
    if type(known) is not type(wanted):
        shapes = f"{_shape(wanted)}, and the one where it stands is {_shape(known)}"
        raise _invalid(name, f"it is {shapes}")
    try:
        source.place(wanted)
        source.latest(wanted, _LOOK, source.horizon())
        source.verify(source.initial(), wanted)
    except TransientError as error:
        blamed(name, _raise, error)  # the source can't be asked: that says nothing about the position
    except Exception as error:
        raise _invalid(name, str(error)) from error


def _raise(error: Exception) -> None:
    raise error


def _shape(value: Any) -> str:
    shapes = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return shapes.get(type(value), "a number")


def _invalid(name: str, why: str) -> Exception:
    message = f"{name} has no such position: {why}"
    return refused("positions.invalid", message, "give one that conduit-dagster positions show, or a record, shows")


def skipped_by(source: Source, known: Any, wanted: Any) -> Skipped:
    """Return what would be lost by continuing from ``wanted``."""
    if isinstance(known, int) and isinstance(wanted, int):
        return Skipped(wanted > known, max(0, wanted - known), "records")
    between = _records_between(source, known, wanted)
    if between is not None and (between or not _is_behind(source, known, wanted)):
        return Skipped(True if between else None, between, "records")
    return Skipped(None if between is None else False)


def _records_between(source: Source, known: Any, wanted: Any) -> int | None:
    """Return the number of records that would be skipped; None if the source can't count them."""
    try:
        counts = [split.records for split in source.split(known, wanted, 1)]
    except Exception:  # noqa: BLE001  # any plugin's code, on a range that it would never make
        return None
    return None if None in counts else sum(count or 0 for count in counts)


def _is_behind(source: Source, known: Any, wanted: Any) -> bool:
    """Return whether at least as much is left to read from ``wanted`` as from the current position."""
    before, after = lag_of(source, known), lag_of(source, wanted)
    return before is not None and after is not None and after >= before
