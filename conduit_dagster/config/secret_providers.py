"""Providers of secrets: functions of installed packages that ``${NAME:reference}`` in a file calls.

A package registers one as an entry point of the group ``conduit_dagster.secrets``; the entry point's name is the
``NAME``. Providers run in the process that reads the file, never in a Spark task.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol

from conduit_dagster.config.findings import did_you_mean

GROUP: Final = "conduit_dagster.secrets"
TIME_LIMIT: Final = 10.0
"""Seconds that a provider may take for one value."""
_KEPT: Final = 60.0
"""Seconds for which a value is cached."""
_FAILED: Final = 30.0
"""Seconds before a provider that failed or hung is asked again: a sensor's tick would wait each time."""


class SecretProvider(Protocol):
    """A function that returns the value of a secret."""

    def __call__(self, reference: str, /) -> str:
        """Return the value for a reference, the text after the provider's name and the colon: ``path#key``.

        Called in a separate thread, by several threads at once, and again whenever files are read; after ``TIME_LIMIT``
        seconds its result is abandoned. It reads its own settings, such as an address, from the environment. Raise
        :class:`SecretError` for mistakes that the author of the file can correct; of any other exception only the class
        is shown, because its text may quote a credential.
        """
        ...


class SecretError(Exception):
    """Raised by a provider: the message is shown with the place of the reference, and ``fix`` suggests a correction."""

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


@dataclass(frozen=True)
class Unresolved:
    """Reason why a reference has no value. ``message``, ``expected`` and ``fix`` are those of its finding."""

    code: str
    message: str
    expected: str | None = None
    fix: str | None = None
    trace: str | None = field(default=None, repr=False, compare=False)


def ask_provider(name: str, reference: str) -> str | Unresolved:
    """Return a provider's value for a reference. Never raises, and waits for at most ``TIME_LIMIT``."""
    points = _registered().get(name, [])
    if len(points) != 1:
        return _unknown(name) if not points else _ambiguous(name, points)
    now = time.monotonic()
    with _lock:
        known, hung, thread = _answers.get((name, reference)), _answers.get((name, None)), _hanging.get(name)
    if known is not None and now < known[0]:
        return known[1]
    if hung is not None and (now < hung[0] or (thread is not None and thread.is_alive())):
        return hung[1]
    value, hangs = _called(name, points[0], reference)
    failed = isinstance(value, Unresolved)
    with _lock:
        until = time.monotonic() + (_FAILED if failed else _KEPT)
        # a hanging provider is asked for no other value either
        _answers[name, None if hangs else reference] = (until, value)
    return value


def forget_answers() -> None:
    """Forget cached answers, and look for newly installed providers."""
    with _lock:
        _answers.clear()
        _hanging.clear()
    _registered.cache_clear()


_lock = threading.Lock()
_answers = dict[tuple[str, str | None], tuple[float, str | Unresolved]]()
_hanging = dict[str, threading.Thread]()
"""Latest call that did not end in time, by provider: while it lasts, no other is made, or each would take a thread."""


@cache
def _registered() -> dict[str, list[EntryPoint]]:
    found = dict[str, list[EntryPoint]]()
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _unknown(name: str) -> Unresolved:
    known = ["env", "file", *sorted(_registered())]
    install = f"install the package that brings it: one with an entry point {name} in the group {GROUP}"
    message = f"there is no provider of secrets called {name}"
    fix = did_you_mean(name, known) or install
    return Unresolved("config.secret_unknown", message, "one of " + ", ".join(known), fix)


def _ambiguous(name: str, points: list[EntryPoint]) -> Unresolved:
    packages = ", ".join(sorted(point.dist.name if point.dist else "a package" for point in points))
    message = f"several packages bring a provider of secrets called {name}: {packages}"
    return Unresolved("config.secret_unknown", message, "one package with this provider", "uninstall the others")


def _called(name: str, point: EntryPoint, reference: str) -> tuple[str | Unresolved, bool]:
    """Return the value or the problem, and whether the provider hangs."""
    answers: list[str | Unresolved] = []
    thread = threading.Thread(
        target=lambda: answers.append(_answer(name, point, reference)), name=f"secrets-{name}", daemon=True
    )
    thread.start()
    thread.join(TIME_LIMIT)
    if answers:
        return answers[0], False
    with _lock:
        _hanging[name] = thread
    fix = f"check that what it asks can be reached from this machine; it is asked again after {_FAILED:g} s"
    message = f"the provider of secrets {name} did not answer within {TIME_LIMIT:g} s"
    return Unresolved("config.secret_failed", message, "an answer in time", fix), True


def _answer(name: str, point: EntryPoint, reference: str) -> str | Unresolved:
    try:
        provider: Callable[[str], object] = point.load()
    except BaseException as error:  # noqa: BLE001  # a package may raise anything while it is imported
        said = f"the provider of secrets {name} cannot be loaded: {type(error).__name__}: {error}"
        return _failed(said, "correct or reinstall its package", error)
    try:
        value = provider(reference)
    except SecretError as error:
        fix = error.fix or "correct the reference, or what the provider needs"
        return _failed(f"the provider of secrets {name} says: {error.message}", fix, error)
    except BaseException as error:  # noqa: BLE001  # nor may it take the process down
        said = f"the provider of secrets {name} failed: it raised {type(error).__name__}"
        return _failed(said, "conduit-dagster validate --debug shows the traceback", error)
    if not isinstance(value, str) or not value:
        what = "an empty text" if value == "" else f"a {type(value).__name__}"
        return _failed(f"the provider of secrets {name} returned {what}", "correct the provider", None)
    return value


def _failed(message: str, fix: str, error: BaseException | None) -> Unresolved:
    trace = "".join(traceback.format_exception(error)) if error is not None else None
    return Unresolved("config.secret_failed", message, "a text that is not empty", fix, trace)
