"""What operators do in Dagster, and a signal that comes meanwhile, as of *Terminate*: the step at hand is finished."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import TAKES_ALL, Folder
from lab.kills import at
from lab.waiting import wait_until

from conduit_dagster.assets import stopping
from conduit_dagster.assets.stopping import Interruptible
from conduit_dagster.state.dead_letters import STATES, DeadLetterQuery, reasons
from conduit_dagster.state.history import events
from conduit_dagster.state.overview import pipeline_rows

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def folder(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """With Dagster's own tables in files: in memory, SQLite refuses a reader while another thread's run writes."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as folder.instance:
        yield folder


def interrupted(folder: Folder, job: str, point: str, config: dict[str, Any], **more: Any) -> dg.ExecuteInProcessResult:
    """A run of the job that gets a signal at a point of the protocol, and goes on once it has noticed that."""
    definition = folder.definitions.resolve_job_def(job)
    enter, entered = Interruptible.__enter__, list[Interruptible]()

    def noted(running: Interruptible) -> Interruptible:
        entered.append(running)
        return enter(running)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        # the main thread, which Python calls of a signal, may wait for the work meanwhile
        wait_until(lambda: not entered[-1].goes_on(), "the signal has come")

    with pytest.MonkeyPatch.context() as patch, at(point, interrupt):
        patch.setattr(Interruptible, "__enter__", noted)
        return definition.execute_in_process({"ops": config}, folder.instance, raise_on_error=False, **more)


def is_free(folder: Folder) -> bool:
    return all(row["owner"] is None for row in pipeline_rows(folder.store).values())


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before-prepare", "after-publish"])
def test_a_replay_ends_after_its_step(folder: Folder, point: str) -> None:
    folder.numbers()
    path = folder.write("numbers.yaml", (folder.root / "pipelines" / "numbers.yaml").read_text())
    path.write_text(path.read_text() + "    delivery: {batch-size: 4}\n")
    assert folder.run().success
    path.write_text(path.read_text().replace("after.n % 10 == 3", "False"))
    result = interrupted(folder, "numbers__replay", point, {})
    assert not result.success
    states = {row["state"]: row["letters"] for row in reasons(folder.store, "numbers", DeadLetterQuery(STATES))}
    assert states == {"replayed": 4, "open": 6}
    assert len(folder.delivered) == 44
    assert folder.newest("numbers", "dead_letters", "replayed")["replayed"] == 4
    assert is_free(folder)


LOGGED = "    delivery: {log: records, batch-size: 30, log-retention: {time: 3d, partitions: daily}}\n"


@pytest.mark.slow
def test_a_backfill_ends_after_its_step_and_the_next_run_sends_the_rest(folder: Folder) -> None:
    folder.numbers(queue=TAKES_ALL)
    path = folder.root / "pipelines" / "numbers.yaml"
    path.write_text(path.read_text() + LOGGED)
    assert folder.run().success
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    result = interrupted(folder, "numbers__backfill", "after-plan", {}, partition_key=today)
    assert not result.success
    once = len(folder.delivered)
    assert 40 < once < 80
    assert folder.newest("numbers", "out")["records_delivered"] == once - 40
    assert is_free(folder)
    assert folder.run().success
    assert sorted(folder.delivered) == sorted(2 * folder.passed(range(100)))


def test_an_operation_is_done_and_recorded(folder: Folder) -> None:
    folder.numbers()
    assert folder.run().success
    config = {"conduit__rewind_source": {"config": {"pipeline": "numbers", "to_start": True}}}
    result = interrupted(folder, "conduit__rewind", "after-lease", config)
    assert not result.success
    assert "rewound" in [event.event for event in events(folder.store, "numbers", 10)]
    assert is_free(folder)


def test_nothing_begins_after_a_signal() -> None:
    begun = list[int]()
    with pytest.raises(dg.DagsterExecutionInterruptedError), Interruptible() as running:
        os.kill(os.getpid(), signal.SIGINT)
        running.run("numbers", lambda: begun.append(1))
    assert begun == []


def test_work_that_hangs_is_left_to_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_CANCELLING", 0.2)
    hangs = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        hangs.wait(60)

    with pytest.raises(dg.DagsterExecutionInterruptedError), Interruptible(patience=0.2) as running:
        running.run("numbers", work)
    hangs.set()
