"""Landing of Spark's rows: each batch once, whatever dies in between, and removed some time after its ack."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.kills import Crash, at, crash
from lab.support import DECODE, Lab, source
from pyspark.sql import SparkSession

from conduit_dagster import storage
from conduit_dagster.builtin_plugins import SOURCES
from conduit_dagster.connectors.spark.driver_session import current_session
from conduit_dagster.connectors.spark.lander import SnapshotLander
from conduit_dagster.connectors.spark.landing import Landing
from conduit_dagster.connectors.spark.settings import SparkSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import ConnectorContext, Limit, ReadOptions

ALL = Limit(10**9, 10**12)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """Three batches of a file each."""
    made = Landing(str(tmp_path))
    for number in (1, 2, 3):
        (tmp_path / f"snapshot-{number}").mkdir()
        (tmp_path / f"snapshot-{number}" / "a").write_text("rows")
        made.land(made.next_number(), [f"snapshot-{number}/a"], f"snapshot-{number}")
    return made


def there(landing: Landing) -> list[int]:
    return [batch.number for batch in landing.batches()]


def folders(landing: Landing) -> list[str]:
    return storage.folders(landing.url)


def test_of_two_owners_with_one_number_one_lands(landing: Landing) -> None:
    with pytest.raises(TransientError) as raised:
        landing.land(3, ["snapshot-1/a"])
    assert raised.value.code == "spark.landed_twice"
    assert [file.name for file in landing.files().files] == [f"0000000{n}-000000" for n in (1, 2, 3)]


def test_what_was_acked_stays_until_it_is_old(landing: Landing) -> None:
    landing.acked(3, 1, 3600)
    assert there(landing) == [1, 2, 3]
    landing.acked(2, 1, 0)
    assert there(landing) == [2, 3] and folders(landing) == ["snapshot-2", "snapshot-3"]
    landing.acked(9, 1, 0)
    assert there(landing) == [3], "the newest one's number tells what comes next"


def test_an_owner_of_an_older_generation_removes_nothing(landing: Landing) -> None:
    landing.acked(2, 2, 3600)
    landing.acked(3, 1, 0)
    assert there(landing) == [1, 2, 3]


def test_a_removal_that_was_killed_is_finished(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(storage, "remove", lambda url: crash())
        with pytest.raises(Crash):
            landing.acked(3, 1, 0)
    assert there(landing) == [3] and len(folders(landing)) == 3
    landing.acked(3, 1, 0)
    assert there(landing) == [3] and folders(landing) == ["snapshot-3"]
    assert storage.files(landing.url) == ["00000003.json"], "nothing is left of what was removed"


def test_when_it_was_acked_outlives_the_process(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.acked(2, 1, 3600)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    Landing(landing.url).acked(3, 1, 3600)
    assert there(Landing(landing.url)) == [2, 3], "the second one is acked just now"


def test_an_owner_sees_the_next_ones_acks_before_it_removes(landing: Landing) -> None:
    landing.acked(2, 1, 3600)
    Landing(landing.url).acked(2, 2, 3600)
    landing.acked(3, 1, 0)
    assert there(Landing(landing.url)) == [1, 2, 3]


def test_the_folder_is_not_listed_for_every_step(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of a stream has tens of thousands of batches."""
    made, listed = Landing(landing.url), list[str]()
    files = storage.files
    monkeypatch.setattr(storage, "files", lambda url: listed.append(url) or files(url))
    for number in range(4, 14):
        made.land(made.next_number(), ["snapshot-1/a"])
        assert there(made)[-1] == number
        assert made.files(lambda name, last=number: name > f"{last:08d}").files[0].url.endswith("snapshot-1/a")
        made.acked(number, 1, 3600)
    assert len(listed) == 1
    assert there(Landing(landing.url)) == there(made) == list(range(1, 14))


def test_what_another_process_landed_is_seen_in_a_while(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Landing(landing.url)
    assert there(reader) == [1, 2, 3]
    landing.land(4, ["snapshot-1/a"])
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 11)
    assert there(reader) == [1, 2, 3, 4]


def test_folders_that_no_batch_names_are_cleaned(landing: Landing) -> None:
    Path(landing.url, "snapshot-9").mkdir()
    landing.clean("snapshot-")
    assert folders(landing) == ["snapshot-1", "snapshot-2", "snapshot-3"]


@pytest.mark.parametrize(("later", "due"), [(59, False), (61, True), (-3600, True)])
def test_a_snapshot_is_due_when_it_is_old_or_the_clock_was_ahead(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, later: int, due: bool
) -> None:
    settings = SparkSourceSettings.model_validate({"path": "in", "refresh": "60s"})
    lander = SnapshotLander(
        "json", settings, ConnectorContext("p", "in", landing.url, Clock(7), "exactly-once"), landing
    )
    now = landing.batches()[-1].at + later
    monkeypatch.setattr(time, "time", lambda: now)
    assert lander.is_due() is due


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["1h", "0s"])
def test_a_stream_of_many_batches(tmp_path: Path, spark: SparkSession, keep: str) -> None:
    """Spark's sink compacts its entries every tenth time; removed ones do not return."""
    kind: Any = SOURCES.find("spark:json", {})
    settings = {"path": "in", "read": "stream", "schema": "i BIGINT", "poll": "0s", "keep": keep}
    (tmp_path / "in").mkdir()
    made, found = None, list[int]()
    position = None
    for number in range(23):
        if number % 5 == 0 or made is None:
            context = ConnectorContext("p", "in", str(tmp_path), Clock(7), "exactly-once")
            made = kind(kind.Settings.model_validate(settings), context)
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"i": number}))
        start = made.initial() if position is None else position
        position = made.latest(start, ALL)
        for split in made.split(start, position, 2):
            found += [record.after["i"] for block in made.read(split, ReadOptions()) for record in block.records]
        made.ack(position, 1)
    assert found == list(range(23))
    assert made is not None and position is not None
    assert len(position["files"]) <= 2, "a position does not grow"
    assert made.latest(position, ALL) == position
    (own,) = (tmp_path / ".conduit" / "log" / "p" / "~landing" / "in").iterdir()
    files = list((own / "stream").glob("*.parquet"))
    assert len(files) >= 23 if keep == "1h" else len(files) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "modes"), [("batch", [{}, {"orders": "copy"}, {"orders": "complete"}]), ("stream", [{}, {}, {}])]
)
def test_a_snapshot_is_complete_once_it_is_read_and_a_stream_never(
    tmp_path: Path, spark: SparkSession, read: str, modes: list[dict[str, str]]
) -> None:
    kind: Any = SOURCES.find("spark:json", {})
    settings = {"path": "in", "read": read, "schema": "i BIGINT", "poll": "0s", "collection": "orders"}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"i": 1}\n{"i": 2}\n')
    context = ConnectorContext("p", "in", str(tmp_path), Clock(7), "exactly-once")
    made = kind(kind.Settings.model_validate(settings), context)
    found, position = [made.collection_modes(made.initial())], made.initial()
    for _ in range(2):
        position = made.latest(position, Limit(1, 10**9))
        found.append(made.collection_modes(position))
    assert found == modes


@pytest.mark.slow
@pytest.mark.parametrize("read", ["batch", "stream"])
def test_a_projects_folder_is_no_pattern(tmp_path: Path, spark: SparkSession, read: str) -> None:
    """The setting is one, as for Spark's own readers."""
    root = tmp_path / "a [b]*{c}?"
    (root / "in").mkdir(parents=True)
    (root / "in" / "0.json").write_text('{"i": 1}\n{"i": 2}\n')
    kind: Any = SOURCES.find("spark:json", {})
    settings = {"path": "in/[0-9].json", "read": read, "schema": "i BIGINT", "poll": "0s"}
    context = ConnectorContext("p", "in", str(root), Clock(7), "exactly-once")
    made = kind(kind.Settings.model_validate(settings), context)
    position = made.latest(made.initial(), ALL)
    splits = made.split(made.initial(), position, 1)
    found = [record.after["i"] for one in splits for block in made.read(one, ReadOptions()) for record in block.records]
    assert sorted(found) == [1, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_stream_of_files_goes_on_where_the_project_was(tmp_path: Path) -> None:
    """Spark's checkpoint has whole paths. The error says so, and nothing is read twice."""
    kind: Any = SOURCES.find("spark:json", {})

    def source_in(root: Path) -> Any:
        context = ConnectorContext("p", "in", str(root), Clock(7), "exactly-once")
        settings = {"path": "in", "read": "stream", "schema": "i BIGINT", "poll": "0s"}
        return kind(kind.Settings.model_validate(settings), context)

    (tmp_path / "a" / "in").mkdir(parents=True)
    (tmp_path / "a" / "in" / "0.json").write_text('{"i": 1}')
    here = source_in(tmp_path / "a")
    position = here.latest(here.initial(), ALL)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "b" / "in" / "1.json").write_text('{"i": 2}')
    with pytest.raises(TransientError, match="Wrong basePath") as raised:
        source_in(tmp_path / "b").latest(position, ALL)
    assert "move the project back" in (raised.value.fix or "")
    (tmp_path / "b").rename(tmp_path / "a")
    back = source_in(tmp_path / "a")
    (split,) = back.split(position, back.latest(position, ALL), 1)
    assert [record.after for block in back.read(split, ReadOptions()) for record in block.records] == [{"i": 2}]


_REBASE = "spark.sql.parquet.datetimeRebaseModeIn"


@pytest.fixture
def julian(spark: SparkSession) -> Iterator[None]:
    """Spark's settings for files of Spark 2."""
    with _set(spark, {f"{_REBASE}{way}": "LEGACY" for way in ("Write", "Read")}):
        yield


@contextmanager
def _set(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    """Set these settings of Spark within the context. The current session may be another test's."""
    places = [(one, key) for one in (spark, current_session()) for key in conf]
    for session, key in places:
        session.conf.set(key, conf[key])
    try:
        yield
    finally:
        for session, key in places:
            session.conf.unset(key)


@pytest.mark.slow
@pytest.mark.usefixtures("julian")
@pytest.mark.parametrize("read", ["batch", "stream"])
def test_days_of_the_julian_calendar_do_not_land(tmp_path: Path, read: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"day": "0001-01-01"}\n')
    kind: Any = SOURCES.find("spark:json", {})
    context = ConnectorContext("p", "in", str(tmp_path), Clock(7), "exactly-once")
    made = kind(kind.Settings.model_validate({"path": "in", "read": read, "schema": "day DATE"}), context)
    with pytest.raises(FatalError) as raised:
        made.latest(made.initial(), ALL)
    assert raised.value.code == "spark.legacy_calendar"
    assert f"{_REBASE}Write: CORRECTED" in (raised.value.fix or "")


@pytest.mark.slow
@pytest.mark.usefixtures("julian")
def test_a_destination_of_spark_has_the_days_that_were_staged(tmp_path: Path, spark: SparkSession) -> None:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"day": "0001-01-01"}])
    settings = {"path": "./out", "columns": "day:date"}
    out = {"id": "out", "type": "destination", "plugin": "spark:json", "settings": settings}
    lab.pipeline(connectors=[source(), out], processors=[DECODE])
    assert lab.run().error is None
    assert [path.read_text() for path in (tmp_path / "out").glob("*.json")] == ['{"day":"0001-01-01"}\n']


@pytest.mark.slow
@pytest.mark.parametrize("read", ["batch", "stream"])
def test_times_do_not_land_without_their_microseconds(tmp_path: Path, spark: SparkSession, read: str) -> None:
    """Where Spark's settings cut them: the records had other times, and nothing was said."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"t": "2024-05-01T12:00:00.123456Z"}\n')
    kind: Any = SOURCES.find("spark:json", {})
    context = ConnectorContext("p", "in", str(tmp_path), Clock(7), "exactly-once")
    made = kind(kind.Settings.model_validate({"path": "in", "read": read, "schema": "t TIMESTAMP"}), context)
    key = "spark.sql.parquet.outputTimestampType"
    with _set(spark, {key: "TIMESTAMP_MILLIS"}), pytest.raises(FatalError) as raised:
        made.latest(made.initial(), ALL)
    assert raised.value.code == "spark.times_cut"
    assert f"{key}: TIMESTAMP_MICROS" in (raised.value.fix or "")


@pytest.mark.slow
def test_a_destination_of_spark_has_the_values_that_were_staged(tmp_path: Path, spark: SparkSession) -> None:
    """Binary became text, whose bytes were lost, and a time without a zone an instant."""
    lab = Lab(tmp_path, spark)
    time_ = datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
    columns = {
        "b": pa.array([b"\xff\xfe"]),
        "n": pa.array([time_.replace(tzinfo=None)], pa.timestamp("us")),
        "t": pa.array([time_], pa.timestamp("us", "UTC")),
        "many": pa.array([[{"b": b"\xff"}]]),
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    given = {"id": "in", "type": "source", "plugin": "parquet", "settings": {"path": "./in.parquet"}}
    out = {"id": "out", "type": "destination", "plugin": "spark:orc", "settings": {"path": "./out"}}
    lab.pipeline(connectors=[given, out])
    conf = {"spark.sql.parquet.binaryAsString": "true", "spark.sql.parquet.inferTimestampNTZ.enabled": "false"}
    with _set(spark, conf):
        assert lab.run().error is None
    frame = spark.read.orc(str(tmp_path / "out"))
    kinds = [("b", "binary"), ("n", "timestamp_ntz"), ("t", "timestamp"), ("many", "array<struct<b:binary>>")]
    assert frame.dtypes == kinds
    (row,) = frame.collect()
    assert (row.b, row.n, row.many[0].b) == (b"\xff\xfe", time_.replace(tzinfo=None), b"\xff")


@pytest.mark.slow
def test_a_destination_of_spark_leaves_out_no_part_that_it_can_not_read(tmp_path: Path, spark: SparkSession) -> None:
    """Where Spark's settings have it skip such files: their records were lost, and counted as delivered."""
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(9)])
    out = {"id": "out", "type": "destination", "plugin": "spark:orc", "settings": {"path": "./out"}}
    lab.pipeline(connectors=[source(), out], processors=[DECODE], delivery={"strategy": "at-least-once"})
    whole = dict[Path, bytes]()

    def damage() -> None:
        for part in tmp_path.glob(".conduit/staging/p/*/out/*.parquet"):
            whole[part] = part.read_bytes()
            part.write_bytes(whole[part][:4] + bytes(36) + whole[part][40:])

    conf = {f"spark.sql.files.ignore{which}Files": "true" for which in ("Corrupt", "Missing")}
    with _set(spark, conf):
        with at("after-prepare", damage):
            error = lab.run().error
        assert error is not None and error.code == "spark.format_failed"
        for part, content in whole.items():
            part.write_bytes(content)
        assert lab.run().error is None
    assert sorted(row.i for row in spark.read.orc(str(tmp_path / "out")).collect()) == list(range(9))
