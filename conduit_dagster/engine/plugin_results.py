"""Check what plugins return, where the mistake would otherwise show in the engine's own code."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, TypeVar, cast

from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Position, Source, Split

T = TypeVar("T")


def invalid_result(node: str, what: str, given: Any, wanted: str) -> FatalError:
    """Return the error for a method ``what`` that returned something other than ``wanted``."""
    kind = given.__name__ if isinstance(given, type) else type(given).__name__
    return FatalError(
        f"{what} gave {kind}, not {wanted}", code="plugin.result_invalid", node=node, fix=f"make it give {wanted}"
    )


def splits_of(node: str, source: Source, start: Position, end: Position, n: int) -> list[Split]:
    """Return the source's splits of a range. Raises ``FatalError`` (``plugin.result_invalid``)."""
    wanted = "a list of Split"
    splits: Any = blamed(node, source.split, start, end, n)
    if not isinstance(splits, Iterable):
        raise invalid_result(node, "split()", splits, wanted)
    found: list[Any] = blamed(node, list[Any], cast("Iterable[Any]", splits))
    if wrong := [split for split in found if not isinstance(split, Split)]:
        raise invalid_result(node, "split()", wrong[0], wanted)
    return found


def require_list(node: str, records: Any) -> None:
    """Raise ``FatalError`` (``plugin.result_invalid``) if a source's block can't be a list of records."""
    if not isinstance(records, Sized) or isinstance(records, str | bytes | dict):
        raise _no_records(node, records)


def not_all_records(node: str, records: Iterable[Any]) -> FatalError:
    """Return the error for a block of which something is not a record."""
    return _no_records(node, next((one for one in records if not hasattr(one, "position")), None))


def _no_records(node: str, given: Any) -> FatalError:
    return invalid_result(node, "a block of read()", given, "a list of Record")


def require_methods(node: str, what: str, made: T, base: type[T], names: Iterable[str]) -> T:
    """Return what a plugin made. Raises ``FatalError`` (``plugin.result_invalid``) if it lacks one of the methods."""
    if all(callable(getattr(made, name, None)) for name in names):
        return made
    raise invalid_result(node, what, made, f"a {base.__name__}")
