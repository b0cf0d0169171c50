"""Rows of the dead-letter index, built from what the tasks wrote to the archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.dead_letters.archive import Archive, ArchivedLetter
from conduit_dagster.state.steps import DeadLetter, LetterPart, Plan, Range


def index_rows(archive: Archive, parts: Sequence[LetterPart], plan: Plan) -> Iterator[list[DeadLetter]]:
    """Yield index rows in record order, a few thousand at a time: a million nacks are never in memory together."""
    spans = {span.source: span for span in plan.ranges}
    before = {source: frozenset(offsets) for source, offsets in plan.nacked.items()}
    queued = "" if plan.replay else plan.hashes.get(DEAD_LETTERS, "")
    for part in parts:
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
    """Return the index row of a letter in a step's range. ``name``: its delivery to the queue, empty if it has none."""
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
