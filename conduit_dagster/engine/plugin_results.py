"""Check what plugins return, positions among it, where the mistake would otherwise show in the engine's own code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sized
from numbers import Number
from typing import Any, Final, TypeVar, cast

import msgspec
from pydantic import SecretStr

from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import (
    MISCOUNTED,
    Block,
    Dataset,
    Destination,
    Limit,
    Nack,
    Position,
    Processor,
    Record,
    Refusal,
    Rejected,
    Source,
    Split,
)
from conduit_dagster.sdk.promises import is_built_in
from conduit_dagster.secret_values import remember

_UNKNOWN: Final = 2**63
T = TypeVar("T")
N = TypeVar("N", int, float)
P = TypeVar("P", Source, Destination, Processor)


def invalid_result(node: str, what: str, given: Any, wanted: str) -> FatalError:
    """Return the error for a method ``what`` that returned something other than ``wanted``."""
    kind = given.__name__ if isinstance(given, type) else type(given).__name__
    return FatalError(
        f"{what} gave {kind}, not {wanted}", code="plugin.result_invalid", node=node, fix=f"make it give {wanted}"
    )


def set_up(kind: type[P], settings: Mapping[str, Any], context: Any) -> P:
    """Return a plugin with its settings and its context.

    Raises ``FatalError`` (``plugin.broken``) if its ``__init__`` left them out: the engine's own code would fail on it,
    or each record, later.
    """
    create: Any = kind
    checked = kind.Settings.model_validate(settings)
    # whatever the setting is called
    remember(value.get_secret_value() for _, value in checked if isinstance(value, SecretStr))
    made: P = create(checked, context)
    if hasattr(made, "settings") and hasattr(made, "context"):
        return made
    call, code = "super().__init__(settings, context)", getattr(kind.__init__, "__code__", None)
    raise FatalError(
        f"{kind.__name__}.__init__ does not call {call}",
        code="plugin.broken",
        place=None if code is None else f"{code.co_filename}:{code.co_firstlineno}",
        fix=f"make {call} its first line",
    )


def splits_of(node: str, source: Source, start: Position, end: Position, n: int) -> list[Split]:
    """Return the source's splits of a range. Raises ``FatalError`` (``plugin.result_invalid``)."""
    wanted = "a list of Split"
    splits: Any = blamed(node, source.split, start, end, n)
    if not isinstance(splits, Iterable):
        raise invalid_result(node, "split()", splits, wanted)
    found = cast("list[Any]", splits) if isinstance(splits, list) else blamed(node, list[Any], splits)
    if wrong := [split for split in found if not isinstance(split, Split)]:
        raise invalid_result(node, "split()", wrong[0], wanted)
    if not is_built_in(type(source)):
        _check_fields(node, found)
        _check_ordinals(node, found)
    return found


def _check_fields(node: str, splits: list[Split]) -> None:
    """Raise ``FatalError`` (``plugin.result_invalid``) if splits hold what a task can't be sent as JSON."""
    try:
        msgspec.convert(msgspec.to_builtins(splits), list[Split])
    except (msgspec.ValidationError, TypeError) as error:
        raise FatalError(
            f"split() gave a Split that can't be sent to a task: {error}",
            code="plugin.result_invalid",
            node=node,
            fix="see the types of Split; its detail is a JSON object",
        ) from error


def _check_ordinals(node: str, splits: list[Split]) -> None:
    """Raise ``FatalError`` (``plugin.result_invalid``) if splits are not in the order of their records.

    They would be delivered out of order, and their dead letters have the offsets of other records.
    """
    least, most = 0, 0
    for split in splits:
        if not least <= split.ordinal <= most:
            wanted = f"{least}" if most == least else f"{least} or more"
            raise FatalError(
                f"split() gave a Split with the ordinal {split.ordinal}, not {wanted}",
                code="plugin.result_invalid",
                node=node,
                fix="give the splits in order; an ordinal counts records from the range's start, not the source's",
            )
        least = split.ordinal + (split.records or 0)
        most = least if split.records is not None else _UNKNOWN


def refused_by(node: str, error: Exception, records: int) -> list[Refusal]:
    """Return the records that an error of ``publish`` names, of a delivery with this many; none if it names no record.

    Raises ``FatalError`` (``plugin.result_invalid``) if one is not in the delivery: another would become a dead letter.
    """
    named = blamed(node, lambda: error.refusals) if isinstance(error, Rejected) else []
    for one in named:
        if one.place not in range(records):
            raise FatalError(
                f"publish() rejected record {one.place!r} of a delivery of {records}",
                code="plugin.result_invalid",
                node=node,
                fix=f"make it count the delivery's records from 0 to {records - 1}",
            )
    return [Refusal(one.place, nack_of(node, "Rejected of publish()", one.nack)) for one in named]


def nack_of(node: str, what: str, given: Any) -> Nack:
    """Return a nack with code and message as text. Raises ``FatalError`` (``plugin.result_invalid``) if it is none."""
    if not isinstance(given, Nack):
        raise invalid_result(node, what, given, "a Nack")
    return Nack(str(given.code), str(given.message))


def refused_by_writer(node: str, given: Any, records: int) -> dict[int, Nack]:
    """Return the records that a writer refuses, of a block with this many, by their places; ``None`` refuses none.

    Raises ``FatalError`` (``plugin.result_invalid``).
    """
    if not given:
        return {}
    found = cast("list[Any]", given) if isinstance(given, list | tuple) else [given]
    for one in found:
        if not isinstance(one, Refusal) or one.place not in range(records):
            raise invalid_result(node, "write()", one, f"a list of Refusal, of places from 0 to {records - 1}")
    return {one.place: nack_of(node, "a Refusal of write()", one.nack) for one in found}


def add_miscounted(known: set[str], failures: Iterable[tuple[str, str]]) -> bool:
    """Add the sources of those failures, by source and code, that say that splits began elsewhere than was assumed.

    Return whether one of them is new: nothing that was read counts then, and its range is to be read as one split.
    """
    found = {source for source, code in failures if code == MISCOUNTED} - known
    known |= found
    return bool(found)


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


def check_described(node: str, connector: Source | Destination) -> None:
    """Check what a plugin says of itself, which the store keeps and Dagster shows.

    Raises ``FatalError`` (``plugin.result_invalid``) where it has another type, such as a ``Path``.
    """
    if is_built_in(type(connector)):
        return
    _require(node, "owned", connector.owned, str, "text")
    if isinstance(connector, Destination):
        # before the data set, which is made of it
        _require(node, "address", connector.address, str, "text")
        if not _are_columns(connector.declared_columns):
            raise invalid_result(node, "declared_columns", connector.declared_columns, "a list of (name, type) in text")
    _require(node, "dataset", connector.dataset, Dataset, "a Dataset")


def _require(node: str, what: str, given: Any, kind: type[Any], wanted: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise invalid_result(node, what, given, f"{wanted} or None")


def _are_columns(given: Any) -> bool:
    return isinstance(given, Iterable) and all(
        isinstance(one, tuple | list) and [*map(type, cast("list[Any]", one))] == [str, str]
        for one in cast("Iterable[Any]", given)
    )


def as_stored(node: str, position: Any, what: str) -> Position:
    """Return a source's position as it comes back from the store: a tuple is a list there, and a number as a key text.

    Raises ``FatalError`` (``source.position_invalid``) if JSON can't hold it; ``what`` gave it.
    """
    try:
        stored = json.loads(json.dumps(position, allow_nan=False))
        msgspec.json.encode(stored)  # takes no half a character
    except (TypeError, ValueError, RecursionError) as error:
        raise _position_error(node, f"{what} gave a {type(position).__name__}: {error}") from error
    return stored


def initial_of(node: str, source: Source) -> Position:
    """Return the source's initial position. Raises ``FatalError`` (``source.position_invalid``)."""
    return as_stored(node, blamed(node, source.initial), "initial()")


def latest_of(node: str, source: Source, start: Position, limit: Limit, horizon: Any) -> Position:
    """Return the source's latest position after ``start``. Raises ``FatalError`` (``source.position_invalid``)."""
    end = blamed(node, source.latest, start, limit, horizon)
    # the position of a large folder has hundreds of kilobytes; the conformance suite checks those of built-ins
    if is_built_in(type(source)):
        return end
    if end is None and start is not None:
        raise _position_error(node, "latest() gave None: it gives its start if there is nothing new")
    return as_stored(node, end, "latest()")


def lag_at(source: Source, position: Position) -> int | None:
    """Return the source's lag at a position; None if unknown. Raises whatever it raises, or if it gives no number."""
    return _number(source.lag(position), int)


def lag_seconds_at(source: Source, position: Position) -> float | None:
    """Return how long data behind a position may have waited, like :func:`lag_at`."""
    return _number(source.lag_seconds(position), float)


def counts_at(source: Source, position: Position) -> dict[str, int]:
    """Return the source's figures of a position, like :func:`lag_at`."""
    given = {str(name): _number(count, int) for name, count in source.counts(position).items()}
    return {name: count for name, count in given.items() if count is not None}


def _number(given: Any, kind: Callable[[Any], N]) -> N | None:
    """Return a number of any type, such as a ``Decimal`` of a database, as one of ours: it is added up and exported."""
    if given is None:
        return None
    if not isinstance(given, Number):
        raise TypeError(f"{type(given).__name__} is no number")
    return kind(given)


def own_positions(node: str, records: list[Record], before: Position) -> Position:
    """Check positions that are boundaries as well: the step may be cut between any two records. Return the last.

    ``before`` is that of the record before, None for a split's first.
    """
    positions: list[Any] = [record.position for record in records]
    if None in positions:
        raise _position_error(node, f"read() gave record {positions.index(None)} of a block without a position")
    as_stored(node, positions[-1], "read()")
    texts = list(map(str, positions if before is None else [before, *positions]))
    if len(set(texts)) < len(texts):
        twice = next(text for place, text in enumerate(texts) if text in texts[:place])
        raise _position_error(node, f"read() gave two records the position {twice[:100]!r}")
    return positions[-1]


def require_new(node: str, block: Block, after: Position) -> None:
    """Raise ``FatalError`` (``source.position_invalid``) if a block has the record whose position is ``after``.

    It was read before, and so were all in front of it: nothing of this read may count.
    """
    for place in range(len(block.records)):
        boundary = block.boundary(place)
        if boundary == after or (isinstance(boundary, tuple) and list(cast("Any", boundary)) == after):
            raise _position_error(
                node,
                f"read() gave the record at {json.dumps(after)[:100]} again, after which it was to go on",
                "split.start is what initial() gave, or the position of the last record that was read, whatever"
                " latest() gave: make read() begin right after it",
            )


_A_POSITION: Final = "a position is a JSON value for the place right after one record: text, a number, a list or a dict"


def _position_error(node: str, message: str, fix: str = _A_POSITION) -> FatalError:
    """Return the error for a mistake in a source's positions."""
    return FatalError(message, code="source.position_invalid", node=node, fix=fix)


def owned_fix(thing: str) -> str:
    """Return what to do about a resource that two destinations would write to: a path, or what its name says."""
    kind = "path" if thing.startswith("/") else thing.partition(" ")[0]
    return f"give each destination and dead-letter queue a {kind} of its own"
