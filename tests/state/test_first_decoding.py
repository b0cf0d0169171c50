"""Pipelines of one process begin at the same moment, each in a thread: they decode what the store holds together."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

PROCESSES = 12
SCRIPT = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
from conduit_dagster.state.steps import Decision, Plan, encode
kinds = [(Plan, Plan(1, 1, [])), (Decision, Decision([], {}, [], ""))]
texts = [(kind, encode(value)) for kind, value in kinds]
barrier = threading.Barrier(8)

def decode():
    barrier.wait()
    for kind, text in texts:
        msgspec.json.decode(text, type=kind)

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_decode_for_the_first_time_together_do_not_end_the_process() -> None:
    """In one process of four msgspec did, where it had not seen the types before."""
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda _: subprocess.run([sys.executable, "-c", SCRIPT], check=False), range(PROCESSES))
        assert [run.returncode for run in runs] == [0] * PROCESSES
