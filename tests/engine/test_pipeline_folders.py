"""Two projects with one ``state.staging`` or ``state.log``: a pipeline's folders there belong to the first of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lab.support import DECODE, Lab, destination, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.cli.main import main
from conduit_dagster.engine.report import RunResult

ROWS = [{"i": i} for i in range(30)]


def project(root: Path, spark: SparkSession, place: str) -> Lab:
    """A project whose log is compacted as soon as everything in it is delivered; ``place``: a setting of ``state``."""
    lab = Lab(root, spark)
    lab.write("in.jsonl", ROWS)
    (root / "conduit.yaml").write_text(f"state: {{{place}}}\n")
    build(lab)
    return lab


def build(lab: Lab, **kept: object) -> None:
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE],
        delivery={"strategy": "exactly-once", "log": "records", "log-segment-size": 1, "batch-size": 10, **kept},
        **{"dead-letter-queue": queue()},
    )


def refused(result: RunResult, folder: Path) -> None:
    assert result.error is not None and result.error.fatal
    assert (result.error.code, result.error.place) == ("state.foreign_folder", f"{folder}/~project")
    assert str(folder) in result.error.message and result.error.fix


@pytest.mark.parametrize(
    ("name", "folders"), [("staging", ["shared/p", "shared/~log/p"]), ("log", ["shared/p"])], ids=["staging", "log"]
)
def test_a_folder_of_another_project_is_left_alone(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, folders: list[str]
) -> None:
    """Its log was taken for remains of earlier runs, and removed with the first compaction of one's own."""
    place = f"{name}: {tmp_path}/shared"
    first, second = (project(tmp_path / one, spark, place) for one in "ab")
    build(first, **{"log-retention": {"time": "1d"}})
    assert first.run().error is None
    kept = sorted(path for path in (tmp_path / "shared").rglob("*") if path.is_file())
    assert len([path for path in kept if path.suffix == ".parquet"]) == 3
    refused(second.run(), tmp_path / folders[0])
    monkeypatch.chdir(second.root)
    assert main(["log", "compact", "p"]) == main(["pipelines", "delete", "p", "--force"]) == 3
    assert sorted(path for path in (tmp_path / "shared").rglob("*") if path.is_file()) == kept
    # as its fix says: once that project is gone for good
    for folder in folders:
        (tmp_path / folder / "~project").unlink()
    assert second.run().error is None
    assert second.documents("out.jsonl") == ROWS
    refused(first.run(), tmp_path / folders[0])


def test_a_project_keeps_its_folders_on_another_machine_and_with_another_pipeline(
    tmp_path: Path, spark: SparkSession
) -> None:
    lab = project(tmp_path / "a", spark, f"url: 'sqlite:///{tmp_path}/state.db', staging: {tmp_path}/shared")
    assert lab.run().error is None
    shutil.rmtree(lab.root / ".conduit")
    assert lab.run().error is None, "a new home adopts the store, whose folders they are"
    alone = project(tmp_path / "c", spark, f"staging: {tmp_path}/shared")
    (alone.root / "pipelines" / "p.yaml").unlink()
    alone.pipeline(id="q", connectors=[source(), destination()])
    assert alone.run("q").error is None


@pytest.mark.parametrize("left", [b"", b"0123456789abcdef"], ids=["empty", "half"])
def test_a_claim_that_a_crash_cut_short_counts_for_nothing(tmp_path: Path, spark: SparkSession, left: bytes) -> None:
    mark = tmp_path / "shared" / "p" / "~project"
    mark.parent.mkdir(parents=True)
    mark.write_bytes(left)
    first, second = (project(tmp_path / one, spark, f"staging: {tmp_path}/shared") for one in "ab")
    assert first.run().error is None
    refused(second.run(), mark.parent)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "shared").write_text("no folder")
    result = project(tmp_path / "a", spark, f"staging: {tmp_path}/shared").run()
    assert result.error is not None and not result.error.fatal
    assert str(tmp_path / "shared" / "p") in result.error.message
