"""``metrics``, and ``run --metrics``."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import sqlalchemy as sa
from lab.server_process import free_port
from lab.waiting import wait_until

from conduit_dagster.cli import metrics
from conduit_dagster.config.project import Project
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.metrics.families import page
from conduit_dagster.state.claim import open_store
from conduit_dagster.state.connector_registrations import SourceUnit
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import pipelines, sources

READ = 'conduit_pipeline_records_read_total{pipeline="orders",source="in"} 7.0\n'


@pytest.fixture
def known(project: Path) -> Path:
    """A project whose pipeline read 7 records once; 16 bytes are left to read."""
    found = Project.find(project, {})
    database = open_store(found.state_url, found.home)
    lease = acquire(database, "orders", 10)
    store = PipelineStore(database, lease)
    store.status.begin(RunStart("first", "pipelines/orders.yaml"))
    store.registering(lambda registry, _: registry.register_source("in", SourceUnit({}, "/"), {"files": [], "seen": 0}))
    with database.begin() as connection:
        connection.execute(sources.update().values(records=7, acked=7))
    store.status.ended("stopped", "user")
    lease.release()
    database.dispose()
    return project


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that is already in use."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def free() -> str:
    """An address that is free until a command takes it."""
    return f"127.0.0.1:{free_port()}"


def scraped(address: str) -> str:
    """The page; empty while nothing serves it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/metrics", timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.URLError:
        return ""


def test_the_page_is_printed(run, known: Path) -> None:
    ran = run("metrics")
    assert (ran.code, ran.err) == (0, "")
    assert READ in ran.out
    assert 'conduit_pipeline_status{pipeline="orders",status="stopped"} 1.0\n' in ran.out
    assert ran.out.endswith("\n")


def test_the_lag_is_asked_of_the_source_in_the_file(run, known: Path) -> None:
    size = (known / "in.jsonl").stat().st_size
    sample = f'conduit_source_lag{{pipeline="orders",source="in",unit="bytes"}} {float(size)}\n'
    assert sample in run("metrics").out
    (known / "pipelines" / "orders.yaml").unlink()
    page = run("metrics").out
    assert "conduit_source_lag" not in page
    assert READ in page


@pytest.mark.parametrize(("lag", "shown"), [("much", []), (Decimal("5"), ["5.0"]), (float("nan"), [])])
def test_a_lag_that_is_no_number_is_unknown_to_each_command(
    run, known: Path, monkeypatch: pytest.MonkeyPatch, lag: object, shown: list[str]
) -> None:
    """It ended ``metrics`` for all pipelines, and the run that had delivered everything."""
    monkeypatch.setattr(FileSource, "lag", lambda self, position: lag)
    monkeypatch.setattr(FileSource, "lag_seconds", lambda self, position: lag)
    monkeypatch.setattr(FileSource, "counts", lambda self, position: {"files": lag})
    page = run("metrics").out
    assert READ in page
    lags = [line for line in page.splitlines() if line.startswith("conduit_source_lag{")]
    assert [line.rpartition(" ")[2] for line in lags] == shown
    for words in (("positions", "show"), ("pipelines", "describe", "orders"), ("pipelines", "list")):
        assert run(*words).code == 0
    [source] = json.loads(run("positions", "show", "--json").out)["result"]["pipelines"][0]["sources"]
    assert source["lag"] == (5 if shown else None)


def test_the_lag_is_asked_of_a_source_that_keeps_lists_in_the_store(
    run, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position of a folder of many files refers to them."""
    found = dict[object, object]()
    monkeypatch.setattr(FileSource, "attach_kept", lambda self, kept: found.update({self: kept.get("0" * 64)}))
    monkeypatch.setattr(FileSource, "lag", lambda self, position: 5 if found[self] is None else 6)
    assert 'conduit_source_lag{pipeline="orders",source="in",unit="bytes"} 5.0\n' in run("metrics").out


def test_sources_that_hang_do_not_take_the_page_one_after_the_other(
    run, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prometheus gives a page up after ten seconds, and with it the status of every pipeline."""
    database = open_store(Project.find(known, {}).state_url, known / ".conduit")
    for name in ("second", "third"):
        with database.begin() as connection:
            for table in (pipelines, sources):
                [row] = connection.execute(sa.select(table).where(table.c.pipeline == "orders")).mappings()
                connection.execute(table.insert().values({**row, "pipeline": name}))
        text = (known / "pipelines" / "orders.yaml").read_text()
        (known / "pipelines" / f"{name}.yaml").write_text(text.replace("orders", name))
    database.dispose()
    together = threading.Barrier(3)
    monkeypatch.setattr(FileSource, "lag", lambda self, position: (together.wait(2.0) and 5) or 5)
    lags = [line for line in run("metrics").out.splitlines() if line.startswith("conduit_source_lag{")]
    assert len(lags) == 3
    assert all(line.endswith(" 5.0") for line in lags)


def test_a_source_that_hangs_is_left_out_and_the_rest_is_there(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(FileSource, "lag", lambda self, position: ended.wait(60) and 5)
    database = open_store(Project.find(known, {}).state_url, known / ".conduit")
    stored = metrics._stored(database, [], 0.1)
    for _ in range(2):  # it is not asked again while it hangs
        text = page(stored.collect())
        assert READ in text
        assert "conduit_source_lag{" not in text
    ended.set()
    wait_until(lambda: "conduit_source_lag{" in page(stored.collect()), "the source answers again", 10)
    database.dispose()


def test_the_same_as_json(run, known: Path) -> None:
    samples = run("metrics", "--json").envelope["result"]["metrics"]
    labels = {"pipeline": "orders", "source": "in"}
    assert {"name": "conduit_pipeline_records_read_total", "labels": labels, "value": 7} in samples


def test_looking_makes_no_store(run, project: Path) -> None:
    ran = run("metrics")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert run("metrics", "--json").envelope["result"] == {"metrics": []}
    assert not (project / ".conduit").exists()


def test_it_starts_no_spark(known: Path) -> None:
    code = (
        "import sys; from conduit_dagster.cli.main import main; code = main(['metrics']);"
        "print([m for m in ('pyspark.sql', 'py4j', 'dagster') if m in sys.modules]); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=known, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [("metrics", "--serve"), ("run", "--metrics"), ("run", "--once", "--metrics")])
def test_a_taken_or_odd_address_starts_nothing(run, project: Path, taken: str, words: tuple[str, ...]) -> None:
    ran = run(*words, taken, "--json")
    assert (ran.code, ran.envelope["error"]["code"]) == (3, "environment.metrics_address")
    assert "Address already in use" in ran.envelope["summary"]
    assert not (project / ".conduit" / "staging").exists()
    ran = run(*words, "9400", "--json")
    assert (ran.code, ran.envelope["error"]["code"]) == (2, "usage.address")
    assert "127.0.0.1:9400" in ran.envelope["error"]["fix"]


def test_the_projects_address_is_for_runs_that_last(run, project: Path, taken: str) -> None:
    (project / "conduit.yaml").write_text(f"metrics: {{listen: '{taken}'}}\n")
    assert run("run", "--json").envelope["error"]["code"] == "environment.metrics_address"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(shell, known: Path, free: str, number: signal.Signals) -> None:
    process = shell.spawn("metrics", "--serve", free)
    shell.wait_until(process, lambda: READ in scraped(free), "the page is served")
    assert "\nconduit_metrics_up 1.0\n" in scraped(free)
    process.send_signal(number)
    ran = shell.ended(process)
    assert (ran.code, ran.out) == (0, "metrics are no longer served\n")
    assert f"http://{free}/metrics" in ran.err


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_a_run_serves_what_it_moves(shell, project: Path, free: str) -> None:
    with (project / "in.jsonl").open("a") as file:
        file.write(json.dumps({"id": 3}) + "\n")
    process = shell.spawn("run", "--metrics", free)
    samples = (
        'conduit_pipeline_records_read_total{pipeline="orders",source="in"} 4.0\n',
        'conduit_pipeline_records_nacked_total{pipeline="orders",source="in"} 1.0\n',
        'conduit_destination_records_delivered_total{destination="out",pipeline="orders"} 3.0\n',
        'conduit_pipeline_dead_letters_total{pipeline="orders"} 1.0\n',
        'conduit_source_lag{pipeline="orders",source="in",unit="bytes"} 0.0\n',
        'conduit_pipeline_status{pipeline="orders",status="running"} 1.0\n',
    )
    shell.wait_until(process, lambda: "conduit_step_seconds_count" in scraped(free), "a step is done")
    page = scraped(free)
    assert [one for one in samples if one not in page] == []
    process.send_signal(signal.SIGINT)
    assert shell.ended(process).code == 0
    assert scraped(free) == ""
