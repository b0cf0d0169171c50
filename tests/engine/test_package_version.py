"""Workers with another version of the package refuse a step: it could be read and staged otherwise."""

from __future__ import annotations

import math
import pickle
import re
import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest
from lab.support import Lab, destination, source

from conduit_dagster.engine import run_jobs, stager
from conduit_dagster.recovery.errors import FatalError


def test_workers_with_another_version_refuse_the_step(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.root / "in.jsonl").write_text('{"i": 1}\n')
    lab.pipeline(connectors=[source(), destination()])
    monkeypatch.setattr(run_jobs, "PACKAGE_VERSION", "0.0.9")
    error = lab.run().error
    assert error is not None
    assert (error.code, error.fatal) == ("spark.version_differs", True)
    assert "0.0.9" in error.message
    monkeypatch.undo()
    assert lab.run().error is None
    assert len(lab.lines("out.jsonl")) == 1


@pytest.fixture
def newer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that only this process has, as after an upgrade; Spark's workers are older."""
    (lab.root / "in.jsonl").write_text('{"i": 1}\n')
    lab.pipeline(connectors=[source(), destination()])
    module = ModuleType("conduit_dagster.engine.newer")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def moved(function: Any, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that workers look for in the module, by the name ``moved``."""

    def one(*args: Any) -> Any:
        return function(*args)

    one.__module__, one.__qualname__ = module.__name__, "moved"
    monkeypatch.setattr(module, "moved", one, raising=False)
    return one


@pytest.mark.parametrize("has_module", [False, True])
def test_workers_that_lack_a_tasks_code_refuse_the_step(
    lab: Lab, newer: ModuleType, has_module: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stager, "stage_task", moved(stager.stage_task, stager if has_module else newer, monkeypatch))
    error = lab.run().error
    assert error is not None
    assert (error.code, error.fatal) == ("spark.version_differs", True)
    lacking = "attribute '?moved|Can't get attribute 'moved'" if has_module else "No module named '.*engine.newer'"
    assert re.search(lacking, error.message)


@pytest.mark.parametrize("has_module", [False, True])
def test_workers_that_lack_what_checks_the_version_refuse_the_step(
    lab: Lab, newer: ModuleType, has_module: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = moved(run_jobs.run_tasks, run_jobs if has_module else newer, monkeypatch)
    monkeypatch.setattr(run_jobs, "run_tasks", function)
    error = lab.run().error
    assert error is not None
    assert (error.code, error.fatal) == ("spark.version_differs", True)


def test_the_version_is_checked_before_the_task_is_loaded(
    lab: Lab, newer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stager, "stage_task", moved(stager.stage_task, newer, monkeypatch))
    monkeypatch.setattr(run_jobs, "PACKAGE_VERSION", "0.0.9")
    error = lab.run().error
    assert error is not None and "this process has 0.0.9" in error.message


class Narrow(msgspec.Struct):
    """A class of the workers' version."""

    first: int


class Wide:
    """The same class here, which has one more field."""

    def __reduce__(self) -> tuple[type[Narrow], tuple[int, int]]:
        return Narrow, (1, 2)


def test_a_task_whose_classes_have_other_fields_is_refused() -> None:
    with pytest.raises(FatalError, match="Extra positional arguments") as caught:
        list(run_jobs.run_tasks(run_jobs.PACKAGE_VERSION, pickle.dumps(Wide()), iter([])))
    assert caught.value.code == "spark.version_differs"


def test_a_module_of_an_author_that_workers_lack_is_not_another_version() -> None:
    missing = pickle.dumps(math.floor).replace(b"math", b"mine")
    with pytest.raises(ModuleNotFoundError, match="mine"):
        list(run_jobs.run_tasks(run_jobs.PACKAGE_VERSION, missing, iter([])))
