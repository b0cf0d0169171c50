"""``dlq discard``: dead letters that nobody will send again."""

from __future__ import annotations

from typing import Any

from conduit_dagster.engine.dead_letters.replaying import give_back
from conduit_dagster.engine.operate.desk import Desk
from conduit_dagster.engine.operate.letters import Selection, total
from conduit_dagster.engine.operate.refused import refused


def discard(desk: Desk, selection: Selection, note: str, dry_run: bool = False) -> dict[str, Any]:
    """Closes the open letters that are meant, with a note. Queue and archive keep their records.

    Raises ``FatalError`` (``dead_letters.none``, ``usage.note``).
    """
    if not note.strip():
        raise refused("usage.note", "the note is empty", "say why nobody will send them again")
    if not dry_run:
        # those of a replay that was killed; what a prepared step of it has is on its way
        give_back(desk.store)
    counts, wanted = selection.facts(desk)
    facts = {"pipeline": desk.id, "letters": total(counts), "reasons": counts, "note": note.strip()}
    if dry_run:
        return {**facts, "discarded": 0}
    return {**facts, "discarded": desk.store.replays.discard(wanted, note.strip(), desk.by)}
