"""CASES B8 through Spark's Python worker, py4j and a streaming query's callback, for real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conduit_dagster.recovery.classify import classify
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import Processor, ProcessorContext, ProcessorSettings
from conduit_dagster.spark.jobs import run_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JSON = json.dumps({"code": 422, "message": "no such table"})


def gone() -> ConduitError:
    return FatalError("it is gone", code="mine.gone", node="p:out", fix="put it back")


def fatal() -> None:
    raise gone()


def fatal_as_cause() -> None:
    try:
        fatal()
    except FatalError as error:
        raise ValueError("reading failed") from error


def fatal_never_raised() -> None:
    raise ValueError("reading failed") from gone()


def fatal_as_context() -> None:
    try:
        fatal()
    except FatalError:
        int("no number")


def fatal_in_a_group() -> None:
    raise ExceptionGroup("two", [TransientError("later"), gone()])


def json_text() -> None:
    raise ValueError(JSON)


def json_as_cause() -> None:
    try:
        json_text()
    except ValueError as error:
        raise RuntimeError("reading failed") from error


def transient() -> None:
    raise TransientError("try later", code="mine.later")


def plain() -> None:
    raise ValueError("reading failed")


CASES: dict[Callable[[], None], tuple[type, str, str]] = {
    fatal: (FatalError, "mine.gone", "it is gone"),
    fatal_as_cause: (FatalError, "mine.gone", "it is gone"),
    fatal_never_raised: (FatalError, "mine.gone", "it is gone"),
    fatal_as_context: (FatalError, "mine.gone", "it is gone"),
    fatal_in_a_group: (FatalError, "mine.gone", "it is gone"),
    json_text: (FatalError, "422", "no such table"),
    json_as_cause: (FatalError, "422", "no such table"),
    transient: (TransientError, "mine.later", "try later"),
    plain: (TransientError, "pipeline.error", "ValueError: reading failed"),
}


class Raising(Processor):
    """Ends its task, like a block that is not worth nacking one by one."""

    name = "raising"

    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__(ProcessorSettings(), ProcessorContext("p", "p:raising", None))  # type: ignore[arg-type]
        self.step = step

    def process_block(self, records: list[Any]) -> list[Any]:
        self.step()
        return records


def failing(spark: SparkSession, step: Callable[[], None]) -> DataFrame:
    """A job whose task runs a processor that raises."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        processor = Raising(step)
        for batch in batches:
            processor.process_block(batch.to_pylist())
            yield batch

    return spark.range(1).mapInArrow(task, "id long")


def caught(action: Callable[[], object]) -> Exception:
    try:
        action()
    except Exception as error:  # noqa: BLE001  # whatever it is: that is the question
        return error
    raise AssertionError("nothing was raised")


def seen(error: BaseException) -> tuple[type, str, str]:
    found = classify(error)
    return type(found), found.code, found.message


@pytest.fixture(autouse=True)
def whole_tracebacks(spark: SparkSession) -> Iterator[None]:
    """By default a worker omits causes from its traceback, and with them anything wrapped by a user's code."""
    name = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "false")
    yield
    spark.conf.set(name, before)


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__)
def test_b08_through_a_worker(spark: SparkSession, step: Callable[[], None]) -> None:
    error = caught(failing(spark, step).collect)
    assert "PythonException" in type(error).__name__
    assert seen(error) == CASES[step]
    wrapped = RuntimeError("somebody's words")
    wrapped.__cause__ = error
    if step is not plain:
        assert seen(wrapped) == CASES[step]


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__)
def test_b08_through_our_own_job(spark: SparkSession, step: Callable[[], None]) -> None:
    error = caught(lambda: run_job(spark, f"b08-{step.__name__}", failing(spark, step).collect))
    assert isinstance(error, ConduitError)
    assert (type(error), error.message) == (CASES[step][0], CASES[step][2])


class Supplier:
    """Python that Java calls."""

    class Java:
        implements = ["java.util.function.Supplier"]

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    def get(self) -> object:
        self._step()
        return None


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__)
def test_b08_through_py4j(spark: SparkSession, step: Callable[[], None]) -> None:
    """Java calls Python, and tells Python of Python's error: py4j's own exception, with Java's stack trace around."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    error = caught(lambda: gateway.jvm.java.util.Optional.empty().orElseGet(Supplier(step)))
    assert type(error).__name__ == "Py4JJavaError"
    assert seen(error) == CASES[step]


def test_b08_through_a_callback_of_py4j(spark: SparkSession, tmp_path: Path) -> None:
    """A streaming query calls Python back, and keeps its error as text."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n")

    def batch(frame: DataFrame, number: int) -> None:
        fatal_as_cause()

    stream = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(batch)
    query = stream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "marks")).start()
    error = caught(lambda: query.awaitTermination(60))
    assert seen(error) == CASES[fatal_as_cause]
    found = classify(error)
    assert (found.node, found.fix) == ("p:out", "put it back")


def test_an_error_of_java_is_transient_and_one_line(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    assert jvm is not None
    found = classify(caught(lambda: jvm.java.util.Optional.empty().orElseThrow()))
    assert (type(found), found.message) == (TransientError, "NoSuchElementException: No value present")
