"""Error classes. The class of an error decides recovery, never its text."""

from __future__ import annotations

import errno
import json
import re
import shlex
from typing import Any, Final, Self

from conduit_dagster.recovery.codes import class_of, is_code
from conduit_dagster.secret_values import hide
from conduit_dagster.store_files import StoreError

MARK: Final = "conduit-error: "
"""Prefix of the note that carries an error through wrappers that keep only its text."""

_NAMES: Final = re.compile(r"\b(?:PIPELINE|CONNECTOR)\b")


class ConduitError(Exception):
    """An error that stops a pipeline, reported once and clearly.

    ``code`` is stable: a dotted name, or an integer (``docs/error-codes.md``); any other value is omitted, and the
    message mentions it. ``place``: location of the error (a file, a connector, a position). ``fix``: the next thing to
    do; PIPELINE and CONNECTOR in it become those of ``node``, so that a command can be typed as it stands. Secrets
    known to this process are masked in all three.
    """

    fatal = False
    code: str = "pipeline.error"
    place: str | None = None
    fix: str | None = None
    node: str | None = None

    def __new__(cls, *args: Any, **_: Any) -> Self:
        """Give an author's class a message whose own ``__init__`` does not call this one's."""
        made = super().__new__(cls, *args)
        made.message = hide(": ".join([cls.__name__, *map(str, args)]))
        return made

    def __init__(
        self,
        message: str,
        *,
        code: str | int = "pipeline.error",
        place: str | None = None,
        fix: str | None = None,
        node: str | None = None,
    ) -> None:
        # an invalid code in user code must not cost the error its class
        if not is_code(code):
            message = f"{message} ({_misspelled(code)})"
            code = "error.code_invalid"
        message = hide(message)
        super().__init__(message)
        self.message = message
        self.code = str(code)
        self.place = hide(place) if isinstance(place, str) else place
        self.fix = hide(fix) if isinstance(fix, str) else fix
        if node:
            self.set_node(node)
        # Spark workers, py4j and Dagster keep only an exception's text, but all of it, including notes
        self.add_note(MARK + self._as_json())

    def set_node(self, node: str) -> None:
        """Set the node unless it has one, and put its pipeline and connector in place of those words in the fix."""
        self.node = self.node or node
        pipeline, _, below = self.node.partition(":")
        names = {"PIPELINE": pipeline, "CONNECTOR": below.partition(":")[0]}
        if isinstance(self.fix, str):
            self.fix = _NAMES.sub(lambda found: shlex.quote(names[found[0]] or found[0]), self.fix)

    def fields(self) -> dict[str, str | None]:
        """Return code, message, node, place and fix, by name."""
        names = ("code", "message", "node", "place", "fix")
        return {name: getattr(self, name) for name in names}

    def _as_json(self) -> str:
        own = {"fatal": self.fatal, "code": self.code, "message": self.message}
        more = {"node": self.node, "place": self.place, "fix": self.fix}
        return json.dumps(own | {name: value for name, value in more.items() if value is not None}, default=str)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.code, self.place, self.fix, self.node)


class TransientError(ConduitError):
    """An error that may not recur: a restart with backoff may succeed."""


class FatalError(ConduitError):
    """An error that no restart can fix; the pipeline becomes ``degraded`` at once."""

    fatal = True


def coded(
    message: str,
    *,
    code: str | int,
    place: str | None = None,
    fix: str | None = None,
    node: str | None = None,
) -> ConduitError:
    """Return an error of the class that its code implies; an unknown code is transient, and the message mentions it.

    For codes from elsewhere, such as the status of an HTTP response: ``raise coded(text, code=status)``.
    """
    verdict = class_of(code) if is_code(code) else None
    if verdict is None and is_code(code):
        message = f"{message} (the error code {code} is not known, so this counts as transient)"
    kind = FatalError if verdict == "fatal" else TransientError
    return kind(message, code=code, place=place, fix=fix, node=node)


NO_MEMORY: Final = "no memory is left"
NO_MEMORY_FIX: Final = (
    "give it more: raise or unset the limit of Spark's Python workers (`spark.executor.pyspark.memory` in spark.conf: "
    "each takes 400m before its first record), or that of the shell, the service or the container"
)

_UNKNOWN = "file.error"
_OS_ERRORS = {
    errno.ENOMEM: (_UNKNOWN, NO_MEMORY, NO_MEMORY_FIX),
    errno.ENOSPC: ("file.disk_full", "no space is left", "free some space and run again; nothing was lost"),
    errno.EDQUOT: (
        "file.disk_full",
        "the disk quota is used up",
        "free some space and run again; nothing was lost",
    ),
    errno.EFBIG: (
        "file.too_big",
        "the file has the largest size allowed",
        "raise the limit on file sizes, or change path",
    ),
    errno.EACCES: (
        "file.no_permission",
        "no permission",
        "give the user that runs the pipeline permission for it",
    ),
    errno.EPERM: (
        "file.no_permission",
        "not permitted",
        "give the user that runs the pipeline permission for it",
    ),
    errno.EROFS: ("file.read_only", "the file system is read-only", "mount it for writing, or change path"),
    errno.ENOENT: ("file.missing", "there is no such file or folder", "create it, or correct the path"),
    errno.EISDIR: ("file.is_folder", "it is a folder", "name a file, or end the path with a slash"),
    errno.EEXIST: ("file.not_folder", "a part of the path is a file", "correct the path"),
    errno.ENAMETOOLONG: ("file.name_too_long", "the path, or a name in it, is too long", "shorten it"),
    errno.ELOOP: ("file.link_loop", "its symbolic links form a circle", "correct the links"),
    errno.ENOTDIR: ("file.not_folder", "a part of the path is a file", "correct the path"),
    errno.EIO: (
        "file.disk_failed",
        "the disk, or the server of a network file system, failed",
        "see what the system's log says of it (dmesg), then run again",
    ),
    errno.ESTALE: (
        "file.stale",
        "the server of the network file system has another file there, or none",
        "nothing: the next attempt opens it anew; if it repeats, mount the file system again",
    ),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE),
        ("file.too_many_open", "too many files are open", "raise the limit (ulimit -n, LimitNOFILE), then run again"),
    ),
    **dict.fromkeys(
        (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT),
        (
            "file.unreachable",
            "it does not answer",
            "check that it runs, and its address in the environment, such as AWS_ENDPOINT_URL",
        ),
    ),
}
_STORE_LOGIN = (
    "check the credentials in the environment, such as AWS_SECRET_ACCESS_KEY, what they may do, and the machine's clock"
)
_STORE_ANSWER = (
    "nothing if it passes by itself, as too many requests do: the run starts again; else correct what the store names, "
    "such as the region (AWS_DEFAULT_REGION)"
)


def from_os_error(error: OSError, doing: str, where: str = "") -> TransientError:
    """Convert an ``OSError`` to an error that names the attempted action, the place and the fix.

    ``where``: the end of its message, the line that raised it.
    """
    code, why, fix = _OS_ERRORS.get(error.errno or 0, (_UNKNOWN, error.strerror or str(error), None))
    place = str(error.filename) if error.filename else None
    if isinstance(error, StoreError):
        why = error.strerror or why
        if error.errno == errno.EACCES:
            fix = _STORE_LOGIN
        elif error.errno == errno.EIO or fix is None:  # a store has no disk of ours
            code, fix = _UNKNOWN, _STORE_ANSWER
    return TransientError(f"{doing}: {why}{where}", code=code, place=place, fix=fix)


def _misspelled(code: object) -> str:
    return f"its code {str(code)[:60]!r} is left out: a code is an integer or a dotted name such as mine.gone"


def _rebuild(
    kind: type[ConduitError], message: str, code: str, place: str | None, fix: str | None, node: str | None
) -> ConduitError:
    return kind(message, code=code, place=place, fix=fix, node=node)
