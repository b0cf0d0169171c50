"""A continuous run whose pipeline has a ``max-lag``: its acks are materialised while nothing moves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder
from lab.idle_source import install
from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, queue, source
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.assets.events import Observer, RunSnapshot
from conduit_dagster.assets.run_reporter import Heartbeat
from conduit_dagster.cli.main import main
from conduit_dagster.engine.report import RunProgress
from conduit_dagster.state.overview import pipeline_rows

pytestmark = pytest.mark.usefixtures("spark")
TELLING = """
with (root / "asked").open("a") as file:
    file.write(".")
return int((root / "waits").read_text())
"""
ACKS, OUT = dg.AssetKey(["numbers", "acks"]), dg.AssetKey(["numbers", "out"])


class Idle:
    """A pipeline with nothing to read, and nevertheless a lag at its source."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        install(folder.root, "telling", TELLING)

    def write(self, max_lag: str) -> None:
        self.folder.numbers(0, trigger=f"continuous\n    delivery: {{max-lag: {max_lag}}}")
        file = self.folder.root / "pipelines" / "numbers.yaml"
        reads = "plugin: builtin:file\n        settings: {path: ./in.jsonl}"
        file.write_text(file.read_text().replace(reads, "plugin: telling"))

    def waits(self, number: int) -> None:
        new = self.folder.root / "waits-new"
        new.write_text(str(number))
        new.rename(self.folder.root / "waits")  # it may be read at any moment

    @property
    def asked(self) -> int:
        return (self.folder.root / "asked").stat().st_size

    def shown(self, key: dg.AssetKey = ACKS) -> int:
        return len(self.folder.instance.fetch_materializations(key, limit=1000).records)

    def lag_checks(self) -> list[bool]:
        check = dg.AssetCheckKey(ACKS, "ack_lag")
        found = self.folder.instance.event_log_storage.get_asset_check_execution_history(check, 100)
        return [one.evaluation.passed for one in reversed(found) if one.evaluation is not None]

    @contextmanager
    def running(self, **config: str) -> Iterator[None]:
        """Run the pipeline's job, in a thread, until the block ends."""
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(self.folder.run, end_after="280s", **config)
            wait_until(self._begun, "the run has begun", over=run.done)
            try:
                yield
            finally:
                stopped = main(("pipelines", "stop", "numbers"))
            assert (stopped, run.result().success) == (0, True)

    def _begun(self) -> bool:
        row = pipeline_rows(self.folder.store).get("numbers")
        return row is not None and row["status"] == "running" and bool(self.lag_checks())


@pytest.fixture
def idle(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Idle:
    monkeypatch.chdir(folder.root)
    idle = Idle(folder)
    idle.waits(0)
    return idle


def test_an_idle_run_shows_its_acks_as_long_as_the_lag_is_kept(idle: Idle) -> None:
    idle.write("400ms")
    with idle.running(materialize_every="50ms"):
        wait_until(lambda: idle.shown() >= 3, "the acks are materialised, again and again")
        assert idle.shown(OUT) == 0, "nothing else is"
        idle.waits(7)
        wait_until(lambda: idle.lag_checks()[-1] is False, "it has waited for too long")
        shown, asked = idle.shown(), idle.asked
        wait_until(lambda: idle.asked >= asked + 10, "it was looked at again and again")
        assert idle.shown() == shown, "the acks are late"
        idle.waits(0)
        wait_until(lambda: idle.shown() > shown, "the lag is kept again")
        wait_until(lambda: idle.lag_checks()[-1] is True, "and its check passes")
    assert idle.folder.newest("numbers", "acks")["lag_records"] == 0


def _moments(max_lag: float | None, every: float, until: float) -> list[tuple[float, bool]]:
    """When an idle run is checked, and whether its acks are materialised then."""
    heartbeat, found, now = Heartbeat(max_lag, every), list[tuple[float, bool]](), 0.0
    heartbeat.show(now)
    while (now := heartbeat.next_look(now)) <= until:
        found.append((now, heartbeat.is_due(RunSnapshot(RunProgress(), 0.0, now), now)))
        if found[-1][1]:
            heartbeat.show(now)
    return found


def test_the_acks_are_shown_every_half_of_the_lag_but_not_more_often_than_anything_else() -> None:
    assert _moments(90, 30, 120) == [(30, False), (45, True), (75, False), (90, True), (120, False)]
    assert _moments(10, 30, 90) == [(30, True), (60, True), (90, True)]
    assert _moments(None, 30, 90) == [(30, False), (60, False), (90, False)]


def test_a_pipeline_without_a_max_lag_shows_them_at_the_end_only(idle: Idle) -> None:
    idle.write("1h")
    file = idle.folder.root / "pipelines" / "numbers.yaml"
    file.write_text(file.read_text().replace("{max-lag: 1h}", "{}"))
    with idle.running(materialize_every="50ms"):
        asked = idle.asked
        wait_until(lambda: idle.asked >= asked + 5, "it was looked at again and again")
        assert idle.shown() == 0
    assert idle.shown() == 1


@pytest.mark.parametrize("log", ["positions", "records"])
def test_what_is_read_and_not_delivered_waits(tmp_path: Path, spark: SparkSession, log: str) -> None:
    """Also if it is logged, so that nothing is left at the source."""
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(3)])
    script = Script(lab)
    script.says("out", outage=[1])
    lab.pipeline(
        connectors=[source(), scripted()], processors=[DECODE], delivery={"log": log}, **{"dead-letter-queue": queue()}
    )
    assert lab.run().error is not None
    [bound] = lab.catalogue().bound
    with lab.store() as database:
        look = Observer(bound, database).snapshot()
    assert (look.waiting, look.keeps(0.0)) == (True, False)
    assert look.lag["in"] == (0 if log == "records" else 27, "bytes")
    script.says("out")
    assert lab.run().error is None
    with lab.store() as database:
        look = Observer(bound, database).snapshot()
    assert (look.waiting, look.keeps(0.0)) == (False, True)
