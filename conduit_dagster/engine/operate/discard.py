"""``dlq discard``: close dead letters that will not be sent again."""

from __future__ import annotations

from typing import Any

from conduit_dagster.engine.dead_letters.replaying import give_back
from conduit_dagster.engine.operate.letters import DeadLetterSelection, total
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock


def discard(desk: PipelineLock, selection: DeadLetterSelection, note: str, dry_run: bool = False) -> dict[str, Any]:
    """Close the selected open letters, with a note. Queue and archive keep their records.

    Raises ``FatalError`` (``dead_letters.none``, ``usage.note``).
    """
    if not note.strip():
        raise refused("usage.note", "the note is empty", "say why nobody will send them again")
    if not dry_run:
        # letters of a killed replay; those in a prepared step are on their way
        give_back(desk.store)
    counts, wanted = selection.facts(desk)
    facts = {"pipeline": desk.id, "letters": total(counts), "reasons": counts, "note": note.strip()}
    if dry_run:
        return {**facts, "discarded": 0}
    return {**facts, "discarded": desk.store.replays.discard(wanted, note.strip(), desk.by)}
