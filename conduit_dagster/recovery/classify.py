"""Classification of any exception, even when wrapped by user code, Spark's Python worker, py4j, gRPC or Dagster."""

from __future__ import annotations

import re
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar, cast

from conduit_dagster.recovery.codes import class_of
from conduit_dagster.recovery.error_text import FoundError, Rank, said_by
from conduit_dagster.recovery.errors import (
    NO_MEMORY,
    NO_MEMORY_FIX,
    ConduitError,
    FatalError,
    TransientError,
    from_os_error,
)
from conduit_dagster.spark.explain import explain, is_sparks

_FATAL_IN_DAGSTER: Final = {
    "DagsterAssetCheckFailedError": ("dagster.check_failed", "correct what the failed check found, run again"),
    "DagsterInvalidConfigError": ("dagster.config_invalid", "correct the run's configuration, and run again"),
}

_OWN_CODE: Final = ("conduit_plugins.", "conduit_modules.")
"""Packages of a project's plugins and functions, which are loaded from their texts."""
_CAUSED = re.compile(r"The above exception was caused by the following exception:")
_DAGSTERS_CLASS = re.compile(r"^dagster[\w.]*\.\w+: ")


def classify(error: BaseException, *, doing: str = "", code: str = "pipeline.error") -> ConduitError:
    """Return the ``ConduitError`` that ``error`` is, contains or amounts to (DESIGN.md, Errors; CASES B8).

    The outermost ``FatalError`` or ``TransientError`` anywhere inside wins; then JSON with a code; then an error of the
    operating system. Everything else is transient, under ``code``. ``doing`` begins the message of an unclassified
    error. A wrapped error keeps the inner error's message; one that a project's own code raised says where.
    """
    if (known := classified(error)) is not None:
        return known
    if isinstance(error, OSError):
        return from_os_error(error, doing or type(error).__name__, _where(error))
    if isinstance(error, MemoryError):
        # most have no text; that of Arrow says how much was asked for
        text = ": ".join(filter(None, (doing, NO_MEMORY, _text(error)))) + _where(error)
        return TransientError(text, code=code, fix=NO_MEMORY_FIX)
    message = explain(error) if is_sparks(error) else text_of(error)
    return TransientError(f"{doing}: {message}" if doing else message, code=code)


def text_of(error: BaseException) -> str:
    """Return an error's class and text, and the innermost line of the project's own code that raised it."""
    return f"{type(error).__name__}: {_text(error)}{_where(error)}"


def _where(error: BaseException) -> str:
    """Return the innermost line of the project's own code that raised an error, as the end of its text."""
    # a generator's StopIteration reaches its caller as a RuntimeError, whose traceback leaves out the generator
    for one in (error, error.__cause__):
        frames = traceback.walk_tb(one.__traceback__) if one is not None else ()
        own = [(frame, line) for frame, line in frames if _is_own(frame)]
        if own:
            frame, line = own[-1]
            return f", in {frame.f_code.co_filename}:{line}"
    return ""


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_OWN_CODE)


def classified(error: BaseException) -> ConduitError | None:
    """Return the ``ConduitError`` that ``error`` states, by its class or by a code in its text; None if none is stated.

    A ``ConduitError`` is returned unchanged; a wrapped one as a new ``FatalError`` or ``TransientError``, so that it
    can be raised from ``error``.
    """
    if isinstance(error, ConduitError):
        return error
    coded: list[FoundError] = []
    for level in _levels(error):
        said = [found for one in level if (found := _said(one)) is not None]
        raised = [found.error for found in said if found.rank is Rank.RAISED]
        if raised:
            # among errors at the same level a fatal one decides: a restart would hit it again
            return next((found for found in raised if found.fatal), raised[0])
        coded += said
    return min(coded, key=lambda found: found.rank).error if coded else None


def from_dagster(metadata: Mapping[str, Any], error_class: str | None, message: str) -> ConduitError:
    """Return the error of a failed Dagster step, from ``failure()``'s metadata, class name and text, causes included.

    Metadata values may be Dagster's wrappers. Without conduit metadata the text is classified like any other; a failed
    blocking check and a configuration that Dagster refuses are fatal.
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
    """Return the text that Dagster wrapped, on one line, without its stack and without a Dagster class name."""
    told = _CAUSED.split(text)[-1].partition("\nStack Trace:\n")[0]
    return _DAGSTERS_CLASS.sub("", " ".join(told.split())) or "the step failed without a message"


def _said(error: BaseException) -> FoundError | None:
    if isinstance(error, ConduitError):
        kind = FatalError if error.fatal else TransientError
        copy = kind(error.message, code=error.code, place=error.place, fix=error.fix, node=error.node)
        return FoundError(Rank.RAISED, copy)
    return said_by("\n".join((_text(error), *getattr(error, "__notes__", ()))))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # py4j asks the JVM for the text, and the JVM may be gone
        return type(error).__name__


def lack_of_memory(error: BaseException) -> MemoryError | None:
    """Return the ``MemoryError`` that ``error`` is, holds or was raised from; None for any other.

    A record that is at hand then is not its cause: other records and tasks hold the memory.
    """
    waiting, seen = with_members(error), set[int]()
    while waiting:
        within = waiting.pop()
        if isinstance(within, MemoryError):
            return within
        if within.__cause__ is not None and id(within) not in seen:  # two errors can be each other's cause
            seen.add(id(within))
            waiting += with_members(within.__cause__)
    return None


def with_members(error: BaseException) -> list[BaseException]:
    """Return the error and, if it is an ``ExceptionGroup``, as ``asyncio.TaskGroup`` raises it, all errors in it."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    inner = cast(BaseExceptionGroup[BaseException], error).exceptions
    return [error, *(one for member in inner for one in with_members(member))]


def _levels(error: BaseException) -> Iterator[list[BaseException]]:
    """Yield the error, then the errors directly inside it, and so on, level by level; each once."""
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
    # ``from None`` means that the handled error is irrelevant
    if error.__context__ is not None and not error.__suppress_context__:
        yield error.__context__


T = TypeVar("T")
P = ParamSpec("P")


def blamed(node: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of ``call``; its errors name the node."""
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        if (known := survivable(error)) is None:
            raise
        raise blame(known, node) from error


def blamed_each(node: str, items: Iterable[T]) -> Iterator[T]:
    """Yield the items; an error raised by the iterator names the node, one raised by the consumer does not."""
    iterator = iter(items)
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        except BaseException as error:
            if (known := survivable(error)) is None:
                raise
            raise blame(known, node) from error
        yield item


ENDINGS: Final = (KeyboardInterrupt, GeneratorExit)
"""Errors of no code: they end a process, or close a generator."""


def survivable(error: BaseException) -> Exception | None:
    """Return the error of a library that raises past ``Exception``; None for what must end the process or thread.

    Rust panics reach Python as such (pyo3), some libraries call ``sys.exit``, and a cancelled future raises
    ``CancelledError``: for a run they are failures.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, SystemExit | CancelledError) or type(error).__name__ == "PanicException":
        return TransientError(text_of(error), code="connector.failed")
    return None


def blame(error: BaseException, node: str, code: str = "connector.failed") -> ConduitError:
    """Return a plugin's error as a ``ConduitError`` that names its node; transient, under ``code``, if unclassified."""
    known = classify(error, doing=f"{node} failed" if isinstance(error, OSError) else "", code=code)
    known.set_node(node)
    return known
