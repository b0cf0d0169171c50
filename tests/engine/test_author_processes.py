"""Processes that a plugin starts in a Spark worker, which itself takes no notice of SIGTERM."""

from __future__ import annotations

from lab.support import DECODE, Lab, destination, processor, source

PLUGIN = """
import subprocess
from multiprocessing import get_context
from time import sleep

from conduit_dagster.sdk import Processor

class Starts(Processor):
    name = "starts"

    def process(self, record):
        fork = get_context("fork").Process(target=sleep, args=(30,))
        fork.start()
        program = subprocess.Popen(["sleep", "30"])
        for one in (fork, program):
            one.terminate()
        fork.join(5)
        try:
            record.after.update(fork=fork.exitcode, program=program.wait(5))
        finally:
            fork.kill()
            program.kill()
        return record
"""


def test_a_plugin_can_end_what_it_starts(lab: Lab) -> None:
    """A pool of ``multiprocessing`` waited for its processes without end."""
    lab.write("plugins/starts.py", [PLUGIN])
    lab.write("in.jsonl", [{}])
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, processor("starts", "starts")])
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"fork": -15, "program": -15}]
