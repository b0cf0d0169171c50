"""Two processes start one pipeline at the same moment: one runs it, the other reports who does."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lab.support import DECODE, Lab, destination, queue, source

RACING = Path(__file__).with_name("racing_run.py")
ROWS = [{"i": i} for i in range(20)]

pytestmark = [pytest.mark.slow]


class Racer:
    """One of the two."""

    def __init__(self, root: Path, server: Any) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = server.start(RACING, root, server.url, text=True, **pipes)

    def tell(self) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next line that it prints for the test; log lines are for people."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("ready", "won", "{")):
                return line.strip()
        raise AssertionError(f"it ended with {self.process.wait(90)}")


@pytest.mark.parametrize("attempt", range(3))
def test_one_of_two_runs(attempt: int, tmp_path: Path, connect_server: Any) -> None:
    del attempt
    lab = Lab(tmp_path)
    lab.write("in.jsonl", ROWS)
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], **{"dead-letter-queue": queue()})
    racers = [Racer(tmp_path, connect_server) for _ in range(2)]
    pool = ThreadPoolExecutor(2)  # its threads end with the racers
    try:
        assert list(pool.map(Racer.hear, racers)) == ["ready", "ready"]
        for racer in racers:
            racer.tell()
        first = list(pool.map(Racer.hear, racers))
        [winner] = [racer for racer, line in zip(racers, first, strict=True) if line == "won"]
        [loser] = [json.loads(line) for line in first if line != "won"]
        assert (loser["status"], loser["error"]["code"]) == ("running", "lease.held")
        assert str(winner.process.pid) in loser["error"]["message"]
        winner.tell()
        assert json.loads(winner.hear())["error"] is None
        assert [racer.process.wait(90) for racer in racers] == [0, 0]
    finally:
        for racer in racers:
            racer.process.kill()
            racer.process.communicate(timeout=90)
        pool.shutdown()
    assert lab.documents("out.jsonl") == ROWS
