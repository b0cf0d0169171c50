"""Reading of a source in a task. Records that no step can hold are nacked before a processor or the log meets them."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from conduit_dagster.engine.dead_letters.letter_layout import clean, jsonable
from conduit_dagster.engine.plugin_results import (
    as_stored,
    invalid_result,
    not_all_records,
    own_positions,
    require_list,
)
from conduit_dagster.expressions import Clock
from conduit_dagster.json_values import finite, is_json, unfit
from conduit_dagster.record import (
    OPERATIONS,
    READ_AT,
    SOURCE_CONNECTOR_ID,
    Nack,
    Record,
    change_metadata,
    copy,
    share_documents,
    structure_fault,
    structure_faults,
)
from conduit_dagster.recovery.classify import blamed, blamed_each
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, LazyRecords, Payloads, Position, ReadOptions, Source, Split
from conduit_dagster.sdk.promises import is_built_in


class SourceReadError(Exception):
    """Raised if a source failed in the middle of a range, with its ``__cause__``; records before the failure count."""


def read_or_fail(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield the blocks; raise :class:`SourceReadError` for errors of the source, as opposed to its consumer's."""
    try:
        yield from blocks
    except Exception as error:
        raise SourceReadError from error


def read_blocks(node: str, source: Source, clock: Clock, split: Split, options: ReadOptions) -> Iterator[Block]:
    """Yield the split's records with their metadata; no block is empty. Errors name the source's ``node``."""
    # the engine completes metadata on records only
    options = options._replace(payloads=options.payloads and source.sets_metadata)
    given: Any = blamed(node, source.read, split, options)
    if not isinstance(given, Iterable):
        raise invalid_result(node, "read()", given, "an iterator of lists of Record")
    for block in _blocks(node, given):
        if block.records:
            # a replay's records are checked after its edits
            if not (source.gives_json or isinstance(block.records, LazyRecords) or block.replayed):
                block = _own_documents(source, _without_faults(node, block))
            if isinstance(block.records, Payloads):
                _check_payloads(node, source, block.records)
            elif not source.sets_metadata:
                _label(block.records, node, clock.now_ns)
                block = block._replace(again=None)
            yield block


def _blocks(node: str, given: Iterable[Any]) -> Iterator[Block]:
    """Yield what a source reads as blocks; check the positions of records that come as lists."""
    before: Position = None
    for read in blamed_each(node, given):
        if isinstance(read, Block):
            yield read
            continue
        require_list(node, read)
        if read:
            try:
                before = own_positions(node, read, before)
            except AttributeError:
                raise not_all_records(node, read) from None
        positions = [record.position for record in read]
        yield Block(read, partial(_boundary, node, positions))


def _boundary(node: str, positions: list[Any], place: int) -> Position:
    return as_stored(node, positions[place], "read()")


def _check_payloads(node: str, source: Source, records: Payloads) -> None:
    """Raise ``FatalError`` if a source may not give payloads: what it leaves to the engine is done to records."""
    if not (source.sets_metadata and (source.gives_json or not any(type(one) is dict for one in records.payloads))):
        raise FatalError(
            f"the source {source.name} gives payloads without sets_metadata, or documents without gives_json",
            code="source.payloads_unchecked",
            node=node,
            fix="set both in its class if they hold, else give records",
        )


def _without_faults(node: str, block: Block) -> Block:
    """Nack at the source what no step can hold, before a processor or the log meets it."""
    faults = source_faults(block.records)
    if not faults:
        return block
    records = list(block.records)
    for place in faults:
        records[place] = storable(records[place])
    nacks = {**block.nacks, **{place: (node, nack) for place, nack in faults.items()}}
    return block._replace(records=records, nacks=nacks, again=None)


def _own_documents(source: Source, block: Block) -> Block:
    """Return the block with documents of its own for each record: processors change them in place.

    An author's source may keep what it gives, as pages in a cache, and give it again.
    """
    if is_built_in(type(source)) and not share_documents(block.records):
        return block
    return block._replace(records=[copy(record) for record in block.records])


def _label(records: list[Record], node: str, now_ns: int) -> None:
    """Add a record's source and read time, in Conduit's metadata keys; values set by the source take precedence."""
    own = {SOURCE_CONNECTOR_ID: node, READ_AT: str(now_ns)}
    change_metadata(records, lambda given: {**own, **given})


_PARTS = {"after": ".Payload.After", "key": ".Key", "before": ".Payload.Before"}
SHOWN = frozenset({"record.invalid", "record.not_json", "format.invalid"})
"""Codes of records of which, once they are nacked at their source, only a form to show is left."""


def source_faults(records: list[Record]) -> dict[int, Nack]:
    """Return the nack of each record that no step can hold: place in the block to nack.

    Numbers that JSON lacks become text, before an encoder turns them into null, as do dates and decimals.
    """
    nacks = {place: Nack("record.invalid", fault) for place, fault in structure_faults(records).items()}
    for place, record in enumerate(records):
        if place in nacks:
            continue
        if (nack := unknown_operation(record)) is not None:
            nacks[place] = nack
        elif _is_exact(record.after) and _is_exact(record.key) and _is_exact(record.before):
            continue
        elif not all(_make_exact(record, part) for part in _PARTS):
            nacks[place] = not_json(record)
    return nacks


def _is_exact(value: Any) -> bool:
    try:
        return type(value) is not dict or is_json(value)
    except RecursionError:
        return False


def _make_exact(record: Record, part: str) -> bool:
    """Return whether JSON can hold the part, once what an encoder writes as text or a list is that.

    Such as dates, decimals, tuples and numbers that JSON lacks. A log of records would give a processor the same.
    """
    value = getattr(record, part)
    if _is_exact(value):
        return True
    try:
        value = finite(value)
        made = finite(msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True))
        setattr(record, part, made)
        return is_json(made)
    except RecursionError:
        return not _is_cyclic(value)
    except Exception:  # noqa: BLE001  # whatever an author's value raises
        return False


def _is_cyclic(value: Any) -> bool:
    try:
        json.dumps(value, default=repr, skipkeys=True)
    except RecursionError:  # only nested deeply
        return False
    except ValueError:
        return True
    return False


def not_json(record: Record) -> Nack:
    """Return the nack of a record with a value of a kind that JSON does not have, and the place of the first one."""
    message = "the record holds a value that JSON cannot hold"
    with suppress(RecursionError):
        found = (unfit(getattr(record, part), place) for part, place in _PARTS.items())
        message = ": ".join([message, *islice(filter(None, found), 1)])
    return Nack("record.not_json", message)


def unknown_operation(record: Record) -> Nack | None:
    """Return the nack of a record whose operation OpenCDC does not have; that of an enumeration becomes its text."""
    given: Any = record.operation
    if type(given) is str and given in OPERATIONS:
        return None
    if type(given) is not str and isinstance(given, str):
        record.operation = str.__str__(getattr(given, "value", given))
    if isinstance(given, str) and record.operation in OPERATIONS:
        return None
    return Nack("record.operation", f"operation {given!r} is none of {', '.join(OPERATIONS)}")


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
