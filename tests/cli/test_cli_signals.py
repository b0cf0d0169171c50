"""A SIGTERM to all processes at once, as systemd sends it to those of a service, stops a run as one to the run does."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from lab.waiting import wait_until, whole_lines

WAITING = """
import time
from pathlib import Path
from conduit_dagster.sdk import Processor

class Waiting(Processor):
    name = "waiting"

    def process(self, record):
        Path("reached").touch()
        while not Path("go").exists():
            time.sleep(0.05)
        return record
"""


def started_with(mark: str) -> Iterator[psutil.Process]:
    """Yield the processes that have this in their environment: a run, and all that it and those started."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("MARK") == mark:
                yield process


@pytest.mark.slow
@pytest.mark.parametrize("ci", ["true", ""], ids=["own", "shared"])
def test_a_signal_to_all_processes_lets_the_step_end(shell, project: Path, pipeline, ci: str) -> None:
    """With a JVM of its own, and on a shared server, which ends once nobody uses it."""
    (project / "plugins").mkdir()
    (project / "plugins" / "waiting.py").write_text(WAITING.replace('Path("', f'Path("{project}/'))
    decode = "{id: decode, plugin: json.decode, settings: {field: .Payload.After}}"
    text = pipeline().replace(decode, f"{{id: w, plugin: waiting}}\n      - {decode}")
    (project / "pipelines" / "orders.yaml").write_text(text)
    mark = str(uuid.uuid4())
    process = shell.spawn("run", "--json", env={**os.environ, "MARK": mark, "CI": ci})
    shell.wait_until(process, (project / "reached").exists, "the processor has a record")
    all_of_them = list(started_with(mark))
    assert {"java", "python"} <= {name.rstrip("0123456789.") for name in (one.name() for one in all_of_them)}
    for one in all_of_them:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGTERM)
    next(line for line in process.stderr if "stopping: the step at hand" in line)
    (project / "go").touch()
    ran = shell.ended(process)
    assert ran.code == 0, ran.err
    (one,) = ran.envelope["result"]["pipelines"]
    assert (one["status"], one["reason"]) == ("stopped", "system")
    assert len(whole_lines(project / "orders.jsonl")) == 2
    assert "Traceback" not in ran.err and "\tat " not in ran.err
    wait_until(lambda: not any(one.name() == "java" for one in started_with(mark)), "Java has ended")
