"""Reading of a source in a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from conduit_dagster.engine.plugin_results import invalid_result, not_all_records, own_positions, require_list
from conduit_dagster.engine.record_faults import source_faults, storable
from conduit_dagster.expressions import Clock
from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID, Record, change_metadata, copy, share_documents
from conduit_dagster.recovery.classify import blamed, blamed_each
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, LazyRecords, Payloads, Position, ReadOptions, Source, Split


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
                block = _own_documents(_without_faults(node, block))
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
        yield Block.of(read)


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


def _own_documents(block: Block) -> Block:
    """Return the block with documents of its own for each record: processors change them in place."""
    if not share_documents(block.records):
        return block
    return block._replace(records=[copy(record) for record in block.records], again=None)


def _label(records: list[Record], node: str, now_ns: int) -> None:
    """Add a record's source and read time, in Conduit's metadata keys; values set by the source take precedence."""
    own = {SOURCE_CONNECTOR_ID: node, READ_AT: str(now_ns)}
    change_metadata(records, lambda given: {**own, **given})
