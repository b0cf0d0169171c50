"""One-line causes of Spark errors."""

from __future__ import annotations

import re

from conduit_dagster.recovery.error_text import said_by
from conduit_dagster.recovery.errors import FatalError


def explain(error: BaseException) -> str:
    """Return the cause of a Spark error in one line: no Java stack trace, no Python traceback."""
    text = str(error)
    refused = _GRPC.search(text)
    if refused:
        return refused.group(1)
    if (said := said_by(text)) is not None:
        return " ".join(said.error.message.split("\n"))
    return _raised_in_worker(text) or _ended_worker(text) or _lost(text) or _java_cause(text) or type(error).__name__


def is_sparks(error: BaseException) -> bool:
    """Return whether Spark or its transport raised the error: its text is then a Java trace or the dump of a call."""
    return type(error).__module__.startswith(("pyspark.", "py4j.", "grpc."))


def lacks_our_code(text: str) -> bool:
    """Return whether an error is about a module or a name of this package that is not in the installed one."""
    return _OUR_CODE.search(text) is not None


def version_differs(theirs: str, ours: str) -> FatalError:
    """Return the error for workers with another version of this package. ``theirs``, ``ours``: what each has."""
    return FatalError(
        f"Spark's workers have {theirs}, this process has {ours}",
        code="spark.version_differs",
        fix="install the same version in both; restart Spark if its workers keep running",
    )


_OUR_CODE = re.compile(
    r"No module named 'conduit_dagster\."
    r"|cannot import name \S+ from '?conduit_dagster\b"
    r"|Can't get attribute \S+ on <module 'conduit_dagster\b"
    r"|module 'conduit_dagster\b[^']*' has no attribute"
)
_GRPC = re.compile(r'<_\w*RpcError of RPC[^"]*details = "([^"]*)"')
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[^\W\d][\w.]*(?::|$)")
_JAVA_CLASS = re.compile(r"(?:[a-z][\w$]*\.)+([A-Z][\w$]*): ")
_ENDED_WORKER = re.compile(r"Python worker exited unexpectedly.*")
# Java's own cause does not name the program
_CANNOT_RUN = re.compile(r"Cannot run program .+")
_LOST_EXECUTOR = re.compile(r"ExecutorLostFailure \((executor \S+) .*?\) Reason: (.+)")
_LOST_TASK = re.compile(r"Lost task [^:]*?\): (.+)")


def _raised_in_worker(text: str) -> str | None:
    """Return ``class: message`` of the error that a Python worker raised: the line after its last traceback."""
    _, found, tail = text.rpartition(_TRACEBACK)
    lines = tail.splitlines() if found else []
    return next((line.strip() for line in lines if _RAISED.match(line)), None)


def _ended_worker(text: str) -> str | None:
    """Return Spark's message about a dead Python worker; Java's own cause is how its socket ended, which varies."""
    found = _ENDED_WORKER.search(text)
    return _without_class(found.group()) if found else None


def _lost(text: str) -> str | None:
    """Return which program an executor could not start, or which executor was lost and why."""
    if found := _CANNOT_RUN.search(text):
        return found.group()
    found = _LOST_EXECUTOR.search(text)
    return f"{found.group(1)} was lost: {found.group(2)}" if found else None


def _java_cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # an EOFException without a message is less specific than the error that it caused
    told = [cause for cause in causes if _JAVA_CLASS.match(cause)]
    lost = _LOST_TASK.search(text)
    said = [line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling")]
    return _without_class(told[-1] if told else lost.group(1) if lost else said[0] if said else "")


def _without_class(line: str) -> str:
    """Return ``gone`` for ``org.apache.spark.SparkException: gone``; keep class names that don't begin with Spark."""
    named = _JAVA_CLASS.match(line)
    rest = line[named.end() :] if named else line
    name = f"{named.group(1)}: " if named and not named.group(1).startswith("Spark") else ""
    return name + re.sub(r"\s*SQLSTATE: \w+.*", "", rest)
