"""Ranges of the log as splits: named with their files on the driver, read by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from conduit_dagster.commit_log.layout import LogFolder
from conduit_dagster.connectors.base import Block, Split
from conduit_dagster.state.log_store import LogPart


def log_split(folder: LogFolder, parts: Sequence[LogPart], start: int, stop: int, ordinal: int) -> Split:
    """The entries ``start`` to ``stop`` as a split that any worker can read."""
    mine = [part for part in parts if part.next > start and part.first < stop]
    entries = max(1, sum(part.entries for part in mine))
    weight = sum(part.bytes for part in mine) * (stop - start) // entries
    detail = {
        "to": stop,
        "base": folder.base,
        "pipeline": folder.pipeline,
        "source": folder.source,
        "parts": [msgspec.to_builtins(part) for part in mine],
    }
    return Split(start, ordinal, stop - start, weight, detail)


def read_log(split: Split, keys: bool = True) -> Iterator[Block]:
    """The blocks of a split of :func:`log_split`; without ``keys``, these and positions wait for ``complete``."""
    # here, because validating a pipeline must not import pyarrow
    from conduit_dagster.commit_log.entries import DECODED, decode_batch, decode_rows
    from conduit_dagster.commit_log.reader import read

    detail = split.detail
    folder = LogFolder(detail["base"], detail["pipeline"], detail["source"])
    parts = msgspec.convert(detail["parts"], list[LogPart])
    for batch in read(folder, parts, split.start, detail["to"], DECODED):
        decoded = decode_batch(batch, keys)
        offsets, complete = decoded.offsets, None if keys else decoded.complete
        again = partial(decode_rows, batch, 0)
        yield Block(decoded.records, lambda i, offsets=offsets: offsets[i] + 1, complete, decoded.nacks, again=again)
