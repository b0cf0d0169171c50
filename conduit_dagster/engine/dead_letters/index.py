"""Rows of the dead-letter index, built from the archive files that tasks wrote."""

from __future__ import annotations

from collections.abc import Iterator

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.dead_letters.archive import Archive, ArchivedLetter
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.letter_index import UnindexedPart
from conduit_dagster.state.steps import DeadLetter, Range
from conduit_dagster.state.store import PipelineStore


def index_letters(store: PipelineStore, archive: Archive) -> None:
    """Add an index row for every dead letter of a prepared step, before anything of the step is published.

    The decision names the files; their rows follow in short transactions, so that a million rows don't block other
    pipelines. May be killed at any line and repeated: the next holder of the lease continues where it ended.
    """
    for part in store.letter_index.unindexed():
        line = 0
        for rows in _rows(archive, part):
            if line + len(rows) > part.indexed:
                # an earlier owner may have read the file in batches of another size
                begun = max(0, part.indexed - line)
                store.letter_index.add(part, line + begun, rows[begun:])
                reached("mid-index", store.pipeline)
            line += len(rows)


def _rows(archive: Archive, part: UnindexedPart) -> Iterator[list[DeadLetter]]:
    """Yield a file's index rows in record order, a few thousand at a time."""
    plan = part.plan
    spans = {span.source: span for span in plan.ranges}
    before = {source: frozenset(offsets) for source, offsets in plan.nacked.items()}
    queued = "" if plan.replay else plan.hashes.get(DEAD_LETTERS, "")
    line = 0
    for letters in archive.index(part.name):
        rows: list[DeadLetter] = []
        for place, one in enumerate(letters, line):
            span = spans[one.source]
            name = "" if span.offset + one.ordinal in before.get(one.source, ()) else queued
            rows.append(index_row(one, span, name, part.name, place))
        yield rows
        line += len(letters)


def index_row(letter: ArchivedLetter, span: Range, name: str, part: str, line: int) -> DeadLetter:
    """Return the index row of a letter in a step's range. ``name``: its delivery to the queue, or empty."""
    return DeadLetter(
        span.connector,
        span.generation,
        letter.position,
        span.offset + letter.ordinal,
        letter.node,
        letter.code,
        letter.message,
        letter.namespace,
        name,
        letter.missed,
        part,
        line,
        (letter.step, letter.number) if letter.step >= 0 else None,
    )
