"""The conformance suite of sources: every built-in passes, and one that breaks a rule does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from lab.commit_log_lab import LogLab
from lab.conformance_runs import Make, Numbers, context, run_check
from lab.kept import MemoryValues, leave_at
from lab.postgres_reading import PostgresReading
from lab.postgres_server import PostgresServer
from pyspark.sql import SparkSession

from conduit_dagster.builtin_plugins import SOURCES
from conduit_dagster.config.project import Project
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.connectors.generator.source import GeneratorSettings, GeneratorSource
from conduit_dagster.connectors.parquet.source import ParquetSource, ParquetSourceSettings
from conduit_dagster.connectors.pipeline.read_mode import KEY, Upstream
from conduit_dagster.connectors.pipeline.source import PipelineSource, PipelineSourceSettings
from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorSettings, Limit, ReadOptions, Source, Split
from conduit_dagster.state import tables
from conduit_dagster.state.claim import project_store
from conduit_dagster.testing.conformance import SourceConformance


@pytest.fixture
def postgres(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[PostgresReading]:
    """A separate database."""
    with closing(PostgresReading(postgres_server.create_database(), tmp_path)) as made:
        yield made


class TestFile(SourceConformance):
    @pytest.fixture(params=["one", "several", "headers"])
    def make(self, tmp_path: Path, request: pytest.FixtureRequest) -> Make:
        for number in range(1 if request.param == "one" else 3):
            lines = [json.dumps({"i": i, "text": "é" * (i % 9)}) for i in range(30)]
            (tmp_path / f"in{number}.jsonl").write_text("\n".join([*lines, "", "no json", ""]))
        path = "in0.jsonl" if request.param == "one" else "in*.jsonl"
        settings = {"path": path, "header": request.param == "headers"}
        return lambda: FileSource(FileSourceSettings.model_validate(settings), context(tmp_path))


class TestFilesThatLeave(SourceConformance):
    """A folder whose finished files leave the position at once, into a store shared by all instances."""

    @pytest.fixture
    def make(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
        leave_at(monkeypatch, 1)
        for number in range(9):
            lines = [json.dumps({"file": number, "i": i}) for i in range(5)]
            (tmp_path / f"in{number}.jsonl").write_text("\n".join([*lines, ""]))
        kept = MemoryValues()

        def made() -> FileSource:
            source = FileSource(FileSourceSettings.model_validate({"path": "in*.jsonl"}), context(tmp_path))
            source.attach_kept(kept.access)
            return source

        return made


class TestGenerator(SourceConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        settings = {
            "format.type": "structured",
            "format.options.id": "int",
            "format.options.name": "string",
            "operations": "create,update,delete,snapshot",
            "recordCount": "50",
        }
        return lambda: GeneratorSource(GeneratorSettings.model_validate(settings), context(tmp_path))


class TestParquet(SourceConformance):
    @pytest.fixture(params=["one", "several"])
    def make(self, tmp_path: Path, request: pytest.FixtureRequest) -> Make:
        for number in range(1 if request.param == "one" else 3):
            rows = pa.table({"i": list(range(30)), "text": ["é" * (i % 9) for i in range(30)]})
            pq.write_table(rows, tmp_path / f"in{number}.parquet", row_group_size=7)
        settings = {"path": "in0.parquet" if request.param == "one" else "in*.parquet", "key": "i"}
        return lambda: ParquetSource(ParquetSourceSettings.model_validate(settings), context(tmp_path))


class TestParquetLists(SourceConformance):
    """Files leave the position as soon as they are read."""

    @pytest.fixture
    def make(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
        leave_at(monkeypatch, 1)
        for number in range(9):
            pq.write_table(pa.table({"i": [number * 5 + i for i in range(5)]}), tmp_path / f"in{number}.parquet")
        kept = MemoryValues()

        def made() -> ParquetSource:
            source = ParquetSource(ParquetSourceSettings(path="in*.parquet"), context(tmp_path))
            source.attach_kept(kept.access)
            return source

        return made


@pytest.mark.slow
class TestPostgresRows(SourceConformance):
    """Each instance has its own snapshot, of tables that nobody changes."""

    @pytest.fixture
    def make(self, postgres: PostgresReading) -> Make:
        postgres.execute(
            "CREATE TABLE a (x text, y int, t text, PRIMARY KEY (y, x)); CREATE TABLE b (LIKE a INCLUDING ALL)"
        )
        for table in ("a", "b"):
            postgres.execute(
                f"INSERT INTO {table} SELECT chr(97 + i % 7), i / 7, repeat('é', i % 9) FROM generate_series(0, 29) i"
            )
        return lambda: postgres.source(snapshotMode="initial_only")


@pytest.mark.slow
class TestPostgresChanges(SourceConformance):
    """A server's log grows by itself: here before each instance."""

    keeps_limit = False

    @pytest.fixture
    def make(self, postgres: PostgresReading) -> Make:
        postgres.execute("CREATE TABLE a (id int PRIMARY KEY, t text)")
        postgres.source(snapshotMode="never").latest({}, Limit(1, 1))
        for first in range(0, 30, 5):
            values = f"SELECT i, 'é' FROM generate_series({first}, {first + 4}) i"
            postgres.execute(
                f"INSERT INTO a {values}; UPDATE a SET t = '' WHERE id = {first}; DELETE FROM a WHERE id = {first}"
            )

        def made() -> Source:
            postgres.execute("SELECT pg_create_restore_point('of nobody')")
            return postgres.source(snapshotMode="never")

        return made


class TestSpark(SourceConformance):
    @pytest.fixture
    def make(self, tmp_path: Path, spark: SparkSession) -> Make:
        lines = [json.dumps({"i": i, "text": "é" * (i % 9)}) for i in range(30)]
        (tmp_path / "in.jsonl").write_text("\n".join(lines))
        kind: Any = SOURCES.find("spark:json", {})
        settings = {"path": "in.jsonl", "key": "i"}
        return lambda: kind(kind.Settings.model_validate(settings), context(tmp_path))


class TestPipeline(SourceConformance):
    """The log of another pipeline, in files of seven entries, some of them nacked; and its output."""

    @pytest.fixture(params=["log", "ordered file", "folder"])
    def make(self, tmp_path: Path, request: pytest.FixtureRequest) -> Make:
        project = Project.find(tmp_path, {})
        database = project_store(project)
        settings = {"pipeline": "p", "connector": "in"}
        if request.param == "log":
            lab = LogLab(project.log_url, database, "in")
            for first in range(0, 49, 7):
                lab.append(["a", "b", "a", "", "b", "a", "b"], files=2, nacked=[first, first + 3])
        else:
            settings = {"pipeline": "p", KEY: written(tmp_path, database, request.param == "folder")}
        database.dispose()
        return lambda: PipelineSource(PipelineSourceSettings.model_validate(settings), context(tmp_path))


def written(root: Path, database: sa.Engine, is_folder: bool) -> str:
    """What a file destination has published, as the state store knows it; and more behind that."""
    path = root / "out"
    lines = [json.dumps({"i": i, "text": "é" * (i % 9)}) + "\n" for i in range(30)]
    if is_folder:
        for step in range(1, 5):
            part = path / f"step={step:012d}-{0:016d}-abc" / "part-00000.jsonl"
            part.parent.mkdir(parents=True)
            part.write_text("".join(lines[10 * step - 10 : 10 * step] if step < 4 else ["not yet\n"]))
        target: dict[str, Any] = {"path": str(path), "naming": 2}
    else:
        path.write_text("".join(lines) + "not yet\n")
        target = {"path": str(path), "inode": path.stat().st_ino, "length": len("".join(lines).encode())}
    row = {"pipeline": "p", "consumer": "out", "kind": "data", "delivered": 30, "step": 3, "target": json.dumps(target)}
    with database.begin() as connection:
        connection.execute(tables.consumers.insert().values(**row))
    return Upstream("out", {"path": "./out", "sdk.record.format": "payload/json"}).encode()


class TestNumbers(SourceConformance):
    """As an author writes it."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: Numbers(ConnectorSettings(), context(tmp_path))


class Once(Numbers):
    """As a queue whose messages are gone once they are acked: read to its end, whatever the step's is."""

    replayable = False

    def split(self, start: int, end: int, n: int) -> list[Split]:
        return [Split(start, 0)]

    def read(self, split: Split, options: ReadOptions) -> Iterator[list[Record]]:
        yield [Record(i + 1, {}, {"i": i}) for i in range(split.start, 30)]


class TestOnce(SourceConformance):
    """The source of docs/plugins.md that can't be read again, in short."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: Once(ConnectorSettings(), context(tmp_path))


class Overlaps(Numbers):
    def split(self, start: int, end: int, n: int) -> list[Split]:
        found = super().split(start, end, n)
        for one in found[:-1]:
            one.detail["to"] += 1
        return found


class IgnoresTheLimit(Numbers):
    def latest(self, start: int, limit: Limit, horizon: Any = None) -> int:
        return 30


class StartsOver(Numbers):
    def read(self, split: Split, options: ReadOptions) -> Iterator[list[Record]]:
        yield [Record(i + 1, {}, {"i": i}) for i in range(split.detail["to"])]


class ForgetsOrdinals(Numbers):
    def split(self, start: int, end: int, n: int) -> list[Split]:
        return [Split(one.start, 0, None, 0, one.detail) for one in super().split(start, end, n)]


class CountsFromTheBeginning(Numbers):
    """Ordinals of the source, not of the range: right in the first step only."""

    def split(self, start: int, end: int, n: int) -> list[Split]:
        return [Split(one.start, one.start, None, 0, one.detail) for one in super().split(start, end, n)]


class RemembersItsSplits(Numbers):
    """``read`` uses what ``split`` left in the object, which no task has."""

    end: int

    def split(self, start: int, end: int, n: int) -> list[Split]:
        self.end = end
        return super().split(start, end, n)

    def read(self, split: Split, options: ReadOptions) -> Iterator[list[Record]]:
        yield from super().read(Split(split.start, 0, None, 0, {"to": min(self.end, split.detail["to"])}), options)


class SendsTuples(Numbers):
    def split(self, start: int, end: int, n: int) -> list[Split]:
        found = super().split(start, end, n)
        for one in found:
            one.detail["of"] = (1, 2)
        return found

    def read(self, split: Split, options: ReadOptions) -> Iterator[list[Record]]:
        assert isinstance(split.detail["of"], tuple)
        yield from super().read(split, options)


class IsAlwaysAnother(Numbers):
    @property
    def unit(self) -> dict[str, Any]:
        return {"made": id(self)}


class LacksLabels(Numbers):
    sets_metadata = True


class HasNoHorizon(Numbers):
    def horizon(self) -> Any:
        return None


class GivesUp(Numbers):
    def gives_up(self, start: int, end: int) -> bool:
        return True


class StaysClosed(Numbers):
    closed = False

    def close(self) -> None:
        self.closed = True

    def latest(self, start: int, limit: Limit, horizon: Any = None) -> int:
        assert not self.closed
        return super().latest(start, limit, horizon)


class HasTuples(Numbers):
    def initial(self) -> Any:
        return (0,)


class Twins(Numbers):
    def read(self, split: Split, options: ReadOptions) -> Iterator[list[Record]]:
        for block in super().read(split, options):
            yield [Record(1, {}, record.after) for record in block]


@pytest.mark.parametrize(
    ("kind", "check", "more"),
    [
        (Overlaps, "however_it_is_cut", {"n": 3}),
        (IgnoresTheLimit, "steps_add_up", {"most": 3}),
        (StartsOver, "it_goes_on_at_any_record", {}),
        (ForgetsOrdinals, "splits_know_their_place", {}),
        (CountsFromTheBeginning, "splits_know_their_place", {}),
        (RemembersItsSplits, "it_can_be_read_twice", {}),
        (SendsTuples, "it_can_be_read_twice", {}),
        (GivesUp, "it_can_be_read_twice", {}),
        (IsAlwaysAnother, "positions_are_json", {}),
        (LacksLabels, "records_are_whole", {}),
        (HasNoHorizon, "a_run_that_drains_it_has_an_end", {}),
        (StaysClosed, "it_may_be_used_again_after_it_was_closed", {}),
        (HasTuples, "positions_are_json", {}),
        (Twins, "records_are_whole", {}),
    ],
)
def test_a_source_that_breaks_a_rule_is_found(
    tmp_path: Path, kind: type[Numbers], check: str, more: dict[str, Any]
) -> None:
    sound, broken = (lambda k=k: k(ConnectorSettings(), context(tmp_path)) for k in (Numbers, kind))
    every = {"make": broken, "end": 30, "horizon": broken().horizon(), **more}
    every["records"] = _all(broken if check == "records_are_whole" else sound)
    with pytest.raises((AssertionError, AttributeError, TypeError)):
        run_check(SourceConformance(), check, every)


def _all(make: Make) -> list[Record]:
    return [record for block in make().read(Split(0, 0, None, 0, {"to": 30}), ReadOptions()) for record in block]
