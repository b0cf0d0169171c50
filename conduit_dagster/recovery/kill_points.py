"""Named points before and after each line of the protocol, where a test may kill or freeze the process.

``CONDUIT_KILL_AT=after-prepare`` kills at the first passage, ``after-prepare:3`` at the third. A test may replace this
behaviour with its own hook.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

POINTS: Final = (
    "after-lease",
    "after-fence",
    "after-register",
    "after-reack",
    "before-log",
    "after-log-stage",
    "after-log",
    "before-plan",
    "after-plan",
    "before-stage",
    "after-stage",
    "before-replan",
    "after-replan",
    "before-prepare",
    "after-prepare",
    "mid-index",
    "before-publish",
    "mid-publish",
    "after-publish",
    "after-delivered",
    "before-split",
    "after-split",
    "before-claim",
    "after-claim",
    "before-child",
    "after-child",
    "before-nack",
    "after-nack",
    "before-done",
    "after-done",
    "after-ack",
)
"""Points of a run. Destinations themselves pass ``mid-publish``, in the middle of publishing."""
COMPACTION: Final = (
    "before-compact",
    "mid-compact-write",
    "after-compact-write",
    "after-compact-swap",
    "mid-compact-remove",
    "after-compact",
)
"""Points passed during compaction of the log."""
REPLAY: Final = ("before-replay", "mid-replay", "after-replay")
"""Points around the transactions that select the dead letters of a replay; the replay's steps pass the other points."""
DELETION: Final = ("after-servers", "after-rows", "after-state")
"""Points of ``pipelines delete``: the sources' servers are cleaned up; all rows but dead letters are gone; they too."""
IMPORT: Final = ("mid-import", "before-import")
"""Points of ``log import``: a file is written; all of them are, and the manifest is about to list them."""
SETTING_BACK: Final = ("before-acks", "after-acks", "before-set-back")
"""Points of ``offsets mark --force`` backwards: the acks that a job left are stored; their files are removed."""

_passed: Counter[str] = Counter()
_lock = threading.Lock()


def _kill(point: str, pipeline: str) -> None:
    wanted = os.environ.get("CONDUIT_KILL_AT")
    if not wanted:
        return
    name, _, times = wanted.partition(":")
    with _lock:
        _passed[point] += 1
        if name == point and _passed[point] == int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)


hook: Callable[[str, str], None] = _kill
"""Called with the point and the pipeline's id; a test may replace it."""


def reached(point: str, pipeline: str = "") -> None:
    """Report that a point of the protocol was passed. Costs only a lookup when no test uses it."""
    hook(point, pipeline)
