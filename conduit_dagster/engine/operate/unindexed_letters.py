"""Letters of a file of the archive that was lost before the index had rows for them."""

from __future__ import annotations

from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder
from conduit_dagster.engine.operate.pipeline_lock import StoreLock
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.dead_letters import DeadLetterQuery
from conduit_dagster.state.letter_index import UnindexedPart


def lost_part(lock: StoreLock, wanted: DeadLetterQuery) -> UnindexedPart | None:
    """Return the file that ``wanted`` names, and nothing else, if letters of it have no rows and it can't be read.

    None for one of a replay: which of its letters failed again is only there.
    """
    if wanted.part is None or wanted._replace(part=None) != DeadLetterQuery(wanted.states):
        return None
    found = next((one for one in lock.store.letter_index.unindexed() if one.name == wanted.part), None)
    if found is None or found.plan.replay or _is_readable(lock, found.name):
        return None
    return found


def _is_readable(lock: StoreLock, part: str) -> bool:
    try:
        for _ in Archive(archive_folder(lock.options.log_url, lock.id)).index(part):
            pass
    except FatalError:
        return False
    return True
