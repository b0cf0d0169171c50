"""An error's class survives any wrapping, in one process and as text."""

from __future__ import annotations

import errno
import json
import os
import pickle
import traceback
from collections.abc import Callable

import msgspec
import pytest

from conduit_dagster.engine.stage_job import Ledger, task_error
from conduit_dagster.recovery.classify import blame, classified, classify, from_dagster
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError, coded
from conduit_dagster.state.lease import LeaseLost

GONE = {"code": "mine.gone", "message": "it is gone", "node": "p:out", "place": "./out", "fix": "put it back"}


def gone(kind: type[ConduitError] = FatalError) -> ConduitError:
    return kind("it is gone", code="mine.gone", node="p:out", place="./out", fix="put it back")


def fields(error: ConduitError | None) -> dict[str, object]:
    assert error is not None
    return {name: getattr(error, name) for name in GONE}


def raised(*steps: Callable[[], object]) -> BaseException:
    """What is raised by the last step while the errors of those before it are handled, each in the next one's."""
    try:
        if steps[:-1]:
            try:
                raise raised(*steps[:-1])
            except Exception:  # noqa: BLE001
                steps[-1]()
        else:
            steps[-1]()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def throw(error: BaseException, cause: BaseException | None = None) -> Callable[[], object]:
    def step() -> None:
        if cause is not None:
            raise error from cause
        raise error

    return step


WRAPPED = {
    "itself": gone,
    "a cause": lambda: raised(throw(ValueError("x"), gone())),
    "a cause of a cause": lambda: raised(throw(ValueError("x"), raised(throw(KeyError("y"), gone())))),
    "a context": lambda: raised(throw(gone()), throw(KeyError("clean-up"))),
    "a member of a group": lambda: ExceptionGroup("two", [ValueError("x"), ExceptionGroup("one", [gone()])]),
    "beside a transient one": lambda: ExceptionGroup("two", [TransientError("later"), gone()]),
    "a traceback as text": lambda: RuntimeError("".join(traceback.format_exception(gone()))),
    "text of a wrapped one": lambda: RuntimeError(
        "".join(traceback.format_exception(raised(throw(ValueError("x"), gone()))))
    ),
    "text of a group": lambda: RuntimeError(
        "".join(traceback.format_exception(ExceptionGroup("two", [TransientError("later"), gone()])))
    ),
    "an exception pickled": lambda: pickle.loads(pickle.dumps(gone())),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_b08_a_fatal_error_stays_fatal(wrapper: str) -> None:
    found = classify(WRAPPED[wrapper]())
    assert type(found) is FatalError
    assert fields(found) == GONE


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_b08_through_a_tasks_ledger_and_blame(wrapper: str) -> None:
    """As the engine hands it on: out of a task, and out of a connector on the driver."""
    sent = msgspec.msgpack.encode(Ledger(0, error=task_error(WRAPPED[wrapper](), "a task failed")))
    ledger = msgspec.msgpack.decode(sent, type=Ledger)
    assert ledger.error is not None
    for error in (ledger.error.as_error(), blame(WRAPPED[wrapper](), "p:in")):
        assert error.fatal
        assert fields(error) == GONE


def test_the_outermost_of_ours_decides() -> None:
    """Wrapping an error in the other class is deliberate."""
    later = TransientError("try later", code="mine.later")
    wrapped = raised(throw(ValueError("x"), raised(throw(later, gone()))))
    for error in (wrapped, RuntimeError("".join(traceback.format_exception(wrapped)))):
        found = classify(error)
        assert (type(found), found.code, found.message) == (TransientError, "mine.later", "try later")


def test_an_error_that_was_dealt_with_says_nothing() -> None:
    """``from None`` cuts it off."""

    def step() -> None:
        raise ValueError("plain") from None

    found = classify(raised(throw(gone()), step))
    assert (type(found), found.message) == (TransientError, "ValueError: plain")


def test_a_class_goes_before_a_code_around_it() -> None:
    coded_text = ValueError(json.dumps({"code": 503, "message": "later"}))
    assert fields(classify(raised(throw(coded_text, gone())))) == GONE


def test_causes_in_a_circle_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert classify(one).message == "ValueError: one"


def test_a_derived_class_is_kept_and_can_be_raised_from_its_wrapper() -> None:
    lost = LeaseLost("gone", code="lease.lost")
    assert classify(lost) is lost
    wrapper = raised(throw(ValueError("x"), lost))
    inner = classify(wrapper)
    assert inner is not lost
    with pytest.raises(TransientError) as caught:
        raise inner from wrapper
    assert "gone" in "".join(traceback.format_exception(caught.value))


class HomemadeError(FatalError):
    """An author's own class, which may be unknown to the process that reads its traceback."""


def test_an_authors_class_is_known_by_its_text() -> None:
    told = "".join(traceback.format_exception(HomemadeError("no", code=2001))).replace("HomemadeError", "Elsewhere")
    found = classify(RuntimeError(told))
    assert (found.fatal, found.code, found.message) == (True, "2001", "no")


UNPROCESSABLE = {"code": 422, "message": "no such table", "node": "n", "place": "p", "fix": "f"}
TEXTS = {
    "alone": json.dumps(UNPROCESSABLE),
    "over lines": json.dumps(UNPROCESSABLE, indent=4),
    "behind words": f"writing failed: {json.dumps(UNPROCESSABLE)}",
    "between words": f"writing failed: {json.dumps(UNPROCESSABLE)} (attempt 3)",
    "behind a class": f"ValueError: {json.dumps(UNPROCESSABLE)}",
    "a representation": repr(ValueError(json.dumps(UNPROCESSABLE))),
    "below a key": json.dumps({"error": UNPROCESSABLE}),
    "code as text": json.dumps(UNPROCESSABLE | {"code": "422"}),
}


@pytest.mark.parametrize("text", TEXTS)
def test_b08_json_with_a_fatal_code(text: str) -> None:
    found = classify(ValueError(TEXTS[text]))
    assert (type(found), found.code, found.message) == (FatalError, "422", "no such table")
    assert (found.node, found.place, found.fix) == ("n", "p", "f")


@pytest.mark.parametrize("text", TEXTS)
def test_b08_json_in_a_traceback(text: str) -> None:
    """Source lines in a traceback do not count: this file is full of JSON."""
    wrapped = raised(throw(KeyError("x"), raised(throw(ValueError(TEXTS[text])))))
    found = classify(RuntimeError("".join(traceback.format_exception(wrapped))))
    assert (type(found), found.code) == (FatalError, "422")


def test_source_lines_of_a_traceback_are_no_errors() -> None:
    try:
        raise ValueError("plain", {"code": 422, "message": "in the source"}["code"])
    except ValueError as error:
        told = "".join(traceback.format_exception(error))
    assert '{"code": 422' in told
    assert classified(RuntimeError(told)) is None


@pytest.mark.parametrize(
    ("given", "fatal", "code"),
    [
        ({"code": 503}, False, "503"),
        ({"code": 429}, False, "429"),
        ({"code": 1234}, False, "1234"),
        ({"code": 2345}, True, "2345"),
        ({"code": "file.range_gone"}, True, "file.range_gone"),
        ({"code": "file.missing"}, False, "file.missing"),
        ({"code": "mine.gone", "fatal": True}, True, "mine.gone"),
        ({"code": 422, "fatal": False}, False, "422"),
    ],
)
def test_the_code_in_json_decides(given: dict[str, object], fatal: bool, code: str) -> None:
    found = classify(ValueError(json.dumps(given)))
    assert (found.fatal, found.code, found.message) == (fatal, code, f"error {code}")


@pytest.mark.parametrize("code", ["mine.gone", 9999, 302, "E11000"])
def test_an_unknown_code_is_transient_and_says_so(code: str | int) -> None:
    for found in (classify(ValueError(json.dumps({"code": code, "message": "what"}))), coded("what", code=code)):
        assert (type(found), found.code) == (TransientError, str(code))
        assert found.message == f"what (the error code {code} is not known, so this counts as transient)"


def test_a_known_code_goes_before_an_unknown_one() -> None:
    outer = ValueError(json.dumps({"code": "mine.odd"}))
    assert classify(raised(throw(outer, ValueError('{"code": 422}')))).code == "422"


@pytest.mark.parametrize("code", [None, True, 4.22, -1, "two words", "", b"x", ["a.b"]])
def test_what_is_no_code_is_said_and_costs_no_class(code: object) -> None:
    for kind in (FatalError, TransientError):
        error = kind("it is gone", code=code)  # type: ignore[arg-type]
        assert type(classify(ValueError("".join(traceback.format_exception(error))))) is kind
        assert error.code == "error.code_invalid"
        assert error.message == (
            f"it is gone (its code {str(code)!r} is left out: a code is an integer or a dotted name such as mine.gone)"
        )
    assert coded("what", code=code).code == "error.code_invalid"  # type: ignore[arg-type]


def test_an_authors_integer_is_kept_as_text() -> None:
    assert FatalError("x", code=503).code == "503"
    assert classify(FatalError("x", code=503)).fatal
    assert (type(coded("x", code=404)), type(coded("x", code=503))) == (FatalError, TransientError)


@pytest.mark.parametrize(
    "text",
    [
        "no such thing",
        "",
        'could not read the record {"id": 1, "code": 422}',
        '{"code": null, "message": "x"}',
        '{"status": 422}',
        '[{"cod": 422}]',
        '{"code": 422',
        "{" * 100_000,
        '{"a":' * 5_000,
        "conduit-error: {",
        "conduit-error: []",
        'conduit-error: {"fatal": true}',
    ],
)
def test_plain_text_is_transient(text: str) -> None:
    error = ValueError(text)
    assert classified(error) is None
    found = classify(error, code="connector.failed")
    assert (type(found), found.code, found.message) == (TransientError, "connector.failed", f"ValueError: {text}")


def test_an_error_of_the_operating_system_is_transient() -> None:
    found = classify(OSError(errno.ENOSPC, "full", "./out"), doing="can't write")
    assert (type(found), found.code, found.place) == (TransientError, "file.disk_full", "./out")
    assert found.message == "can't write: no space is left"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE])
def test_errors_of_disks_and_network_file_systems_say_what_to_do(number: int) -> None:
    found = classify(OSError(number, os.strerror(number), "./out"), doing="can't write")
    assert (type(found), found.place) == (TransientError, "./out")
    assert found.code != "file.error" and found.fix


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("malloc of size 320"), OSError(errno.ENOMEM, "no")])
def test_a_lack_of_memory_says_what_limits_it(error: Exception) -> None:
    found = classify(error, doing="a task failed", code="task.failed")
    assert found.message.startswith("a task failed: no memory is left") and type(found) is TransientError
    assert "spark.executor.pyspark.memory" in (found.fix or "")


def test_blame_names_the_node_and_task_errors_what_was_done() -> None:
    assert blame(ValueError("x"), "p:in").node == "p:in"
    assert blame(ValueError("x"), "p:in").code == "connector.failed"
    assert blame(FatalError("x", fix="rewind PIPELINE CONNECTOR, PIPELINES stay"), "p:in:decode").fix == (
        "rewind p in, PIPELINES stay"
    )
    assert blame(FatalError("x", fix="start PIPELINE CONNECTOR"), "p").fix == "start p CONNECTOR"
    assert blame(ValueError('{"code": 422}'), "p:in").node == "p:in"
    plain = task_error(ValueError("x"), "a task failed")
    assert (plain.fatal, plain.code, plain.message) == (False, "task.failed", "a task failed: ValueError: x")
    assert "ValueError: x" in plain.trace
    assert task_error(FileNotFoundError(errno.ENOENT, "no", "f"), "a task failed").trace == ""


def test_an_error_whose_text_can_not_be_asked_for() -> None:
    """Like py4j's, once the Java process is gone."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise ConnectionError("no answer from the gateway")

    assert classify(MuteError()).message == "MuteError: MuteError"


def test_from_dagster_without_anything() -> None:
    found = from_dagster({}, None, "")
    assert (type(found), found.code, found.message) == (
        TransientError,
        "dagster.step_failed",
        "the step failed without a message",
    )
    known = from_dagster({"conduit/error_code": "nacks.threshold_exceeded"}, None, "too many\nof them")
    assert (type(known), known.message) == (FatalError, "too many of them")
