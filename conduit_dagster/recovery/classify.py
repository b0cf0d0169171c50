"""Any exception as one of ours, whoever wrapped it: users' code, Spark's Python worker, py4j, gRPC, Dagster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from conduit_dagster.recovery.codes import class_of
from conduit_dagster.recovery.error_text import Rank, Said, said_by
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError, from_os_error
from conduit_dagster.spark.explain import explain, is_sparks

_FATAL_IN_DAGSTER: Final = {
    "DagsterAssetCheckFailedError": ("dagster.check_failed", "look at the failed check, mend what it found, run again"),
    "DagsterInvalidConfigError": ("dagster.config_invalid", "correct the run's configuration, and run again"),
}

_CAUSED = re.compile(r"The above exception was caused by the following exception:")
_DAGSTERS_CLASS = re.compile(r"^dagster[\w.]*\.\w+: ")


def classify(error: BaseException, *, doing: str = "", code: str = "pipeline.error") -> ConduitError:
    """The error of ours that ``error`` is, carries or amounts to (DESIGN.md, Errors; CASES B8).

    A ``FatalError`` or ``TransientError`` anywhere inside wins, the outermost one; then JSON with a code; then an error
    of the operating system. Everything else is transient, under ``code``. ``doing`` begins the message of an error
    that nobody classified. Of a wrapped error the message is the inner one's.
    """
    if (known := classified(error)) is not None:
        return known
    if isinstance(error, OSError):
        return from_os_error(error, doing or type(error).__name__)
    message = explain(error) if is_sparks(error) else f"{type(error).__name__}: {_text(error)}"
    return TransientError(f"{doing}: {message}" if doing else message, code=code)


def classified(error: BaseException) -> ConduitError | None:
    """What ``error`` itself says of its class, by class or by a code in its text; None where it says nothing.

    An error of ours comes back as it is; one from inside as a new ``FatalError`` or ``TransientError``, so that it
    can be raised from ``error``.
    """
    if isinstance(error, ConduitError):
        return error
    coded: list[Said] = []
    for level in _levels(error):
        said = [found for one in level if (found := _said(one)) is not None]
        raised = [found.error for found in said if found.rank is Rank.RAISED]
        if raised:
            # of errors side by side the fatal one decides: a restart would meet it again
            return next((found for found in raised if found.fatal), raised[0])
        coded += said
    return min(coded, key=lambda found: found.rank).error if coded else None


def from_dagster(metadata: Mapping[str, Any], error_class: str | None, message: str) -> ConduitError:
    """The error of a failed step: ``failure()``'s metadata, the error's class name and its text, causes included.

    Values of the metadata may be Dagster's wrappers. Without metadata of ours the text is read like any other; a
    blocking check that failed and a configuration that Dagster refuses are fatal.
    """
    facts = {name: getattr(value, "value", value) for name, value in metadata.items()}
    code = facts.get("conduit/error_code")
    if "conduit/fatal" in facts or code is not None:
        return _from_metadata(facts, message)
    if (said := said_by(message)) is not None and said.rank is Rank.RAISED:
        return said.error
    if error_class in _FATAL_IN_DAGSTER:
        name, fix = _FATAL_IN_DAGSTER[error_class]
        return FatalError(_cause(message), code=name, fix=fix)
    return said.error if said is not None else TransientError(_cause(message), code="dagster.step_failed")


def _from_metadata(facts: Mapping[str, Any], message: str) -> ConduitError:
    code = facts.get("conduit/error_code", "pipeline.error")
    fatal = facts.get("conduit/fatal", class_of(code) == "fatal")
    kind = FatalError if fatal else TransientError
    place, fix, node = (facts.get(f"conduit/{name}") for name in ("place", "fix", "node"))
    text = facts.get("conduit/message") or _cause(message)
    return kind(str(text), code=code, place=place, fix=fix, node=node)


def _cause(text: str) -> str:
    """What Dagster wrapped, on one line, without its stack and without the name of a class of Dagster's."""
    told = _CAUSED.split(text)[-1].partition("\nStack Trace:\n")[0]
    return _DAGSTERS_CLASS.sub("", " ".join(told.split())) or "the step failed without a word"


def _said(error: BaseException) -> Said | None:
    if isinstance(error, ConduitError):
        kind = FatalError if error.fatal else TransientError
        copy = kind(error.message, code=error.code, place=error.place, fix=error.fix, node=error.node)
        return Said(Rank.RAISED, copy)
    return said_by("\n".join((_text(error), *getattr(error, "__notes__", ()))))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # py4j asks the JVM for the text, and it may be gone
        return type(error).__name__


def _levels(error: BaseException) -> Iterator[list[BaseException]]:
    """The error, then what is right inside it, and so on; each once."""
    seen, level = {id(error)}, [error]
    while level:
        yield level
        below = {id(inner): inner for outer in level for inner in _inside(outer) if id(inner) not in seen}
        seen.update(below)
        level = list(below.values())


def _inside(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        yield from cast(BaseExceptionGroup[BaseException], error).exceptions
    if error.__cause__ is not None:
        yield error.__cause__
    # ``from None`` says that what was handled means nothing
    if error.__context__ is not None and not error.__suppress_context__:
        yield error.__context__
