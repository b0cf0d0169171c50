"""Named points before and after each line of the protocol, where a test may end the process.

``CONDUIT_KILL_AT=after-prepare`` kills at the first passage, ``after-prepare:3`` at the third.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from typing import Final

POINTS: Final = (
    "after-lease",
    "before-plan",
    "after-plan",
    "before-stage",
    "after-stage",
    "before-replan",
    "after-replan",
    "before-prepare",
    "after-prepare",
    "before-publish",
    "after-publish",
    "after-delivered",
    "before-done",
    "after-done",
    "after-ack",
)

_passed: Counter[str] = Counter()
_lock = threading.Lock()


def reached(point: str) -> None:
    """Dies here by SIGKILL where the environment says so; costs a look-up otherwise."""
    wanted = os.environ.get("CONDUIT_KILL_AT")
    if not wanted:
        return
    name, _, times = wanted.partition(":")
    with _lock:
        _passed[point] += 1
        if name == point and _passed[point] == int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)
