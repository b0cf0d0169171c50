"""Selection of dead letters by an operator, and ``dlq discard``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder
from conduit_dagster.engine.dead_letters.search import DeadLetterSearch, tally
from conduit_dagster.engine.open_work import give_back
from conduit_dagster.engine.operate.filters import Filters
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.engine.operate.pipeline_lock import StoreLock
from conduit_dagster.engine.operate.source_positions import moment
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.dead_letters import OPEN, DeadLetterQuery, Key, reasons

_REASON = ("node", "code", "letters")


@dataclass(frozen=True)
class DeadLetterSelection:
    """Selection of open letters."""

    wanted: DeadLetterQuery = field(default_factory=DeadLetterQuery)
    where: str = ""

    def facts(self, lock: StoreLock) -> tuple[list[dict[str, Any]], DeadLetterQuery]:
        """Return counts by reason, and the query for the store. Raises ``FatalError`` (``dead_letters.none``)."""
        wanted = self.wanted._replace(states=OPEN)
        if self.where:
            counts, keys = tally(letters_of(lock).search(wanted, self.where), ("node", "code"))
            wanted = DeadLetterQuery(OPEN, keys=keys)
        else:
            counts = [{k: row[k] for k in _REASON} for row in reasons(lock.store.engine, lock.id, wanted)]
        if not counts:
            raise _none(lock)
        return counts, wanted


def wanted_of(filters: Filters, pipeline: str, states: Sequence[str] = OPEN) -> DeadLetterQuery:
    """Return the query for the index. Raises ``FatalError`` (``usage.since``, ``usage.letter``)."""
    now = time.time_ns()
    since, until = (
        None if text is None else moment(text, now, name)
        for name, text in (("since", filters.since), ("until", filters.until))
    )
    keys = None if filters.ids is None else [_key_of(text, pipeline) for text in filters.ids]
    names = (filters.node, filters.code, filters.source, filters.namespace)
    return DeadLetterQuery(states, *names, since, until, filters.part, keys)


def selection_of(filters: Filters, pipeline: str) -> DeadLetterSelection:
    """Return the selection for an operation. Raises as :func:`wanted_of`."""
    return DeadLetterSelection(wanted_of(filters, pipeline), filters.where)


def letters_of(lock: StoreLock) -> DeadLetterSearch:
    """Return a search over the pipeline's letters."""
    archive = Archive(archive_folder(lock.options.log_url, lock.id))
    return DeadLetterSearch(lock.store.engine, archive, lock.id)


def total(counts: Sequence[dict[str, Any]]) -> int:
    """Return the total over all reasons."""
    return sum(row["letters"] for row in counts)


def parse_id(text: str) -> tuple[str, Key]:
    """Return pipeline and key of a letter's id; the pipeline is optional. Raises ``FatalError`` (``usage.letter``)."""
    pipeline, _, key = text.rpartition("/")
    step, _, number = key.partition(".")
    if not (step.isascii() and step.isdecimal() and number.isascii() and number.isdecimal()):
        fix = "conduit-dagster dlq list shows them"
        raise refused("usage.letter", f"{text!r} is not a dead-letter id; expected PIPELINE/STEP.NUMBER", fix)
    return pipeline, (int(step), int(number))


def _key_of(text: str, pipeline: str) -> Key:
    of, key = parse_id(text)
    if of not in ("", pipeline):
        raise refused("usage.letter", f"{text} is a dead letter of {of}, not of {pipeline}", "name one of its own")
    return key


def _none(lock: StoreLock) -> FatalError:
    message = f"pipeline {lock.id} has no open dead letter of that kind: nothing was changed"
    return refused("dead_letters.none", message, f"conduit-dagster dlq list {lock.id} --state all shows what there is")


def discard(lock: StoreLock, selection: DeadLetterSelection, note: str, dry_run: bool = False) -> dict[str, Any]:
    """Close the selected open letters, with a note. Queue and archive keep their records.

    Raises ``FatalError`` (``dead_letters.none``, ``usage.note``).
    """
    if not note.strip():
        raise refused("usage.note", "the note is empty", "say why they will not be sent again")
    if not dry_run:
        # letters of a killed replay; those in a prepared step remain in it
        give_back(lock.store)
    counts, wanted = selection.facts(lock)
    facts = {"pipeline": lock.id, "letters": total(counts), "reasons": counts, "note": note.strip()}
    if dry_run:
        return {**facts, "discarded": 0}
    return {**facts, "discarded": lock.store.replays.discard(wanted, note.strip(), lock.by)}
