"""Files that only one of driver and task has: the error says so, in place of one about a file that is lost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from conduit_dagster.engine.stage_job import TaskError, task_error
from conduit_dagster.engine.task_files import require_seen
from conduit_dagster.recovery.errors import FatalError, TransientError


def _reported(error: BaseException) -> TaskError:
    sent = msgspec.msgpack.encode(task_error(error, "a task failed"))
    return msgspec.structs.replace(msgspec.msgpack.decode(sent, type=TaskError), host="worker-7")


@pytest.mark.parametrize("code", ["log.missing", "file.missing"])
def test_a_file_that_only_the_task_misses_is_not_given_up(tmp_path: Path, code: str) -> None:
    file = tmp_path / "part.parquet"
    told = _reported(FatalError("it is missing", code=code, place=str(file), fix="give it up", node="p:in"))
    assert told.as_error().code == code
    file.touch()
    error = told.as_error()
    assert (type(error), error.code, error.place) == (TransientError, "spark.not_shared", str(file))
    assert (error.node, "worker-7" in error.message) == ("p:in", True)


def test_a_file_that_the_driver_does_not_see_is_told(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.touch()
    require_seen("worker-7", [str(here), here.as_uri(), "s3://bucket/part"])
    with pytest.raises(TransientError, match="a task on worker-7 has written") as caught:
        require_seen("worker-7", [str(here), str(tmp_path / "there")])
    assert (caught.value.code, caught.value.place) == ("spark.not_shared", str(tmp_path / "there"))
