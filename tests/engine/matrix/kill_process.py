"""The process of the kill matrix that dies, seen from the one that starts it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

VICTIM = Path(__file__).with_name("kill_victim.py")
TIMEOUT = 400


def killed(
    connect: Any, root: Path, wanted: Mapping[str, str], turn: str, does: Literal["run", "replay"] = "run"
) -> dict[str, Any]:
    """Runs pipelines of a project, or replays their dead letters, in a process that dies with all of them.

    ``connect``: where it runs, ``url`` and ``env``. ``wanted``: pipeline to ``point:passage``. The report: ``dead``,
    those that came to their point, and ``ended``, how each of the others ended. ``turn`` names the files it leaves.
    """
    cases, report, log = root / f"cases{turn}.json", root / f"report{turn}.json", root / f"victim{turn}.log"
    cases.write_text(json.dumps(wanted))
    with log.open("wb") as output:
        victim = connect.start(VICTIM, root, connect.url, cases, report, does, stdout=output, stderr=output)
    try:
        code = victim.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        victim.send_signal(signal.SIGABRT)  # faulthandler writes where each thread hangs
        victim.wait(60)
        raise AssertionError(f"it hangs:\n{log.read_text()}") from None
    finally:
        victim.kill()
        victim.wait()
    assert code == -signal.SIGKILL, f"{code}: {log.read_text()[-3000:]}"
    return json.loads(report.read_text())
