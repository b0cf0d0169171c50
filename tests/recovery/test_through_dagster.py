"""CASES B8 through a failed step of Dagster, read back from its event log as the recovery sensor does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest

from conduit_dagster.assets.run_op import failure
from conduit_dagster.recovery.classify import classify, from_dagster
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def stored(instance: dg.DagsterInstance, body: Callable[[], Any], **asset: Any) -> ConduitError:
    """The log of a run whose only step executed ``body``."""

    @dg.asset(name="moved", **asset)
    def moved():  # type: ignore[no-untyped-def]  # Dagster reads the annotation, and checks change what it may be
        return body()

    result = dg.materialize([moved], instance=instance, raise_on_error=False)
    assert not result.success
    entries = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    event = entries[0].dagster_event
    assert event is not None
    data = event.step_failure_data
    assert data.error is not None
    metadata = data.user_failure_data.metadata if data.user_failure_data else {}
    return from_dagster(metadata, data.error.cls_name, data.error.to_string())


def gone(kind: type[ConduitError] = FatalError) -> ConduitError:
    return kind("it is gone", code="mine.gone", node="p:out", place="./out", fix="put it back")


def facts(error: ConduitError) -> tuple[object, ...]:
    return type(error), error.code, error.message, error.node, error.place, error.fix


def throw(error: BaseException, cause: BaseException | None = None) -> Callable[[], None]:
    def body() -> None:
        if cause is not None:
            raise error from cause
        raise error

    return body


@pytest.mark.parametrize("kind", [FatalError, TransientError])
def test_b08_the_failure_of_a_run(instance: dg.DagsterInstance, kind: type[ConduitError]) -> None:
    def body() -> None:
        raise failure(gone(kind)) from None

    assert facts(stored(instance, body)) == facts(gone(kind))


def test_a_failure_that_says_little(instance: dg.DagsterInstance) -> None:
    def body() -> None:
        raise failure(TransientError("it broke")) from None

    assert facts(stored(instance, body)) == facts(TransientError("it broke"))


@pytest.mark.parametrize("kind", [FatalError, TransientError])
def test_b08_raised_in_the_step(instance: dg.DagsterInstance, kind: type[ConduitError]) -> None:
    assert facts(stored(instance, throw(gone(kind)))) == facts(gone(kind))


def test_b08_wrapped_by_users_code(instance: dg.DagsterInstance) -> None:
    assert facts(stored(instance, throw(ValueError("words"), gone()))) == facts(gone())


def test_b08_json_with_a_code(instance: dg.DagsterInstance) -> None:
    found = stored(instance, throw(RuntimeError("words"), ValueError('{"code": 422, "message": "no such table"}')))
    assert facts(found) == facts(FatalError("no such table", code=422))


def test_plain_errors_are_transient(instance: dg.DagsterInstance) -> None:
    """The line with ``{"code": 422}`` in the step's stack is not an error."""

    def body() -> None:
        raise ValueError("plain", {"code": 422, "message": "in the source"}["code"])

    found = stored(instance, body)
    assert (type(found), found.code) == (TransientError, "dagster.step_failed")
    assert found.message == "ValueError: ('plain', 422)"


def test_a_failed_blocking_check_is_fatal(instance: dg.DagsterInstance) -> None:
    checks = [dg.AssetCheckSpec("no_dead_letters", asset="moved", blocking=True)]
    failed = dg.AssetCheckResult(passed=False, check_name="no_dead_letters")
    found = stored(instance, lambda: dg.MaterializeResult(check_results=[failed]), check_specs=checks)
    assert (type(found), found.code) == (FatalError, "dagster.check_failed")
    assert "no_dead_letters" in found.message
    assert found.fix


def test_what_is_raised_in_the_process_is_classified_too() -> None:
    """Dagster's own exception around the step's."""

    @dg.asset
    def moved() -> None:
        throw(ValueError("words"), gone())()

    with pytest.raises(ValueError, match="words") as caught:
        dg.materialize([moved], instance=dg.DagsterInstance.ephemeral())
    assert facts(classify(caught.value)) == facts(gone())
