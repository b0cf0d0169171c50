"""Search for letters by columns of the index and by an expression over the failed record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.dead_letters.archive import Archive, record_of
from conduit_dagster.engine.dead_letters.letter_layout import record_json
from conduit_dagster.engine.redaction import Redaction
from conduit_dagster.engine.trial.trace import TracedNode, trace
from conduit_dagster.expressions import Clock, ExpressionError, compile_condition
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.dead_letters import STATES, DeadLetterQuery, Key, newest, pages

_SLIM = ("step", "number", "part", "line", "state", "node", "code")


class FoundLetter(NamedTuple):
    """A letter with its row of the index."""

    row: sa.RowMapping
    kept: tuple[bytes, bytes] | None
    """Failed record and original; None if they are not in the archive, as for letters of an early version."""

    @property
    def key(self) -> Key:
        """Step and number of the letter."""
        return self.row["step"], self.row["number"]

    def failed(self) -> Record | None:
        """Return the record in its state when it was nacked; None if it was not archived."""
        return None if self.kept is None else record_of(self.kept[0], self.row["part"])

    def original(self) -> Record | None:
        """Return the record as its source returned it; None if it was not archived, or was not requested."""
        return record_of(self.kept[1], self.row["part"]) if self.kept is not None and self.kept[1] else None


class DeadLetterSearch:
    """Search in the letters of one pipeline; needs read access to the store and the archive only."""

    def __init__(self, store: sa.Engine, archive: Archive, pipeline: str) -> None:
        self._store, self._archive, self._id = store, archive, pipeline

    def all(self, wanted: DeadLetterQuery, where: str = "") -> Iterator[FoundLetter]:
        """Yield whole letters one by one, in order. Raises ``FatalError`` (``usage.*``, ``dead_letters.damaged``)."""
        return self._search(where, pages(self._store, self._id, wanted), original=True)

    def search(self, wanted: DeadLetterQuery, where: str, newest_first: bool = False) -> Iterator[FoundLetter]:
        """Yield letters whose failed record matches, with only the index columns for their identity and reason.

        A record for which ``where`` raises does not match. Raises as :meth:`all`.
        """
        found = pages(self._store, self._id, wanted, newest_first=newest_first, columns=_SLIM)
        return self._search(where, found, original=False)

    def _search(self, where: str, found: Iterator[Sequence[sa.RowMapping]], original: bool) -> Iterator[FoundLetter]:
        fits = condition(where) if where else None
        for page in found:
            for one in self._with_records(page, original):
                if fits is None or ((record := one.failed()) is not None and fits(record)):
                    yield one

    def _with_records(self, rows: Sequence[sa.RowMapping], original: bool) -> Iterator[FoundLetter]:
        """Yield the letters of index rows; consecutive ones of a file are read together, some megabytes at a time."""
        for part, group in groupby(rows, lambda row: row["part"]):
            mine = list(group)
            if not part:
                yield from (FoundLetter(row, None) for row in mine)
                continue
            records = self._archive.records(part, [row["line"] for row in mine], original)
            yield from (FoundLetter(row, kept) for row, kept in zip(mine, records, strict=True))

    def counted(
        self, wanted: DeadLetterQuery, where: str, limit: int
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the matches counted by state, node and code, the most frequent first, and the newest rows."""
        counts, keys = tally(self.search(wanted, where, newest_first=True), ("state", "node", "code"), limit)
        found = wanted._replace(keys=keys).pieces()
        return counts, [row for some in found for row in newest(self._store, self._id, some, limit)]


def tally(
    letters: Iterable[FoundLetter], by: Sequence[str], most: int | None = None
) -> tuple[list[dict[str, Any]], list[Key]]:
    """Count letters by these columns, the most frequent first; also return all keys, or the first ``most``."""
    counts: dict[tuple[Any, ...], int] = {}
    keys: list[Key] = []
    for one in letters:
        reason = tuple(one.row[name] for name in by)
        counts[reason] = counts.get(reason, 0) + 1
        if most is None or len(keys) < most:
            keys.append(one.key)
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [{**dict(zip(by, reason, strict=True)), "letters": many} for reason, many in ordered], keys


def condition(text: str) -> Callable[[Record], bool]:
    """Compile an expression over a record. Raises ``FatalError`` (``usage.expression``)."""
    try:
        compiled = compile_condition(text, Clock())
    except ExpressionError as error:
        fix = error.fix or "an expression over the failed record, as in a processor's condition: after.amount > 100"
        raise FatalError(error.message, code="usage.expression", place=f"--where {text!r}", fix=fix) from None

    def matches(record: Record) -> bool:
        try:
            return bool(compiled(record))
        except Exception:  # noqa: BLE001  # whatever a record holds: it does not match
            return False

    return matches


def letter_facts(
    letters: DeadLetterSearch, bound: BoundPipeline | None, pipeline: str, key: Key, redact: Sequence[str] = ()
) -> dict[str, Any]:
    """Return ``row`` of the index, ``failed`` and ``original`` as JSON, and ``nodes``.

    ``nodes`` are the nodes of the current file, each with its result for the original; empty if the file is missing or
    has errors. Values of the fields ``redact`` are masked.

    Raises ``FatalError`` (``dead_letters.unknown``, ``dead_letters.damaged``).
    """
    found = next(letters.all(DeadLetterQuery(STATES, keys=[key])), None)
    if found is None:
        raise FatalError(
            f"pipeline {pipeline} has no dead letter {key[0]}.{key[1]}",
            code="dead_letters.unknown",
            fix=f"conduit-dagster dlq list {pipeline} --state all prints the ids",
        )
    original = found.original()
    view = _View(Redaction(redact))
    return {
        "row": found.row,
        "failed": view.record(found.failed()),
        "original": view.record(original),
        "nodes": [] if original is None or bound is None else view.nodes(bound, found, original),
    }


class _View:
    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction

    def record(self, record: Record | None) -> Any:
        return None if record is None else record_json(self._redaction.record(record))

    def nodes(self, bound: BoundPipeline, found: FoundLetter, original: Record) -> list[dict[str, Any]]:
        pipeline = bound.compiled
        source_node = next((one for one in pipeline.inputs if one.origin == found.row["source"] and not one.only), None)
        if source_node is None:
            return []
        return [self._node(one, original) for one in trace(pipeline, source_node, original, time.time_ns()).nodes]

    def _node(self, passed: TracedNode, original: Record) -> dict[str, Any]:
        said = "filtered" if passed.filtered else "passed"
        for nack, failed in passed.nacked:
            masked = self._redaction.nack(nack, original, failed)
            said = f"nacked, {masked.code}: {masked.message}"
        return {"node": passed.node, "said": said, "records": [self.record(record) for record in passed.records]}
