"""Error classes. The class of an error decides recovery, never its text."""

from __future__ import annotations

import errno


class ConduitError(Exception):
    """What stops a pipeline, said once and clearly.

    ``code`` is stable and dotted, ``place`` says where (a file, a connector, a position), ``fix`` what to do next.
    """

    fatal = False

    def __init__(
        self,
        message: str,
        *,
        code: str = "pipeline.error",
        place: str | None = None,
        fix: str | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.place = place
        self.fix = fix
        self.node = node

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.code, self.place, self.fix, self.node)


class TransientError(ConduitError):
    """Worth another attempt: a restart with backoff may get through."""


class FatalError(ConduitError):
    """No restart can help; the pipeline goes to ``degraded`` at once."""

    fatal = True


_OS_ERRORS = {
    errno.ENOSPC: ("file.disk_full", "no space is left", "free some space and run again; nothing was lost"),
    errno.EDQUOT: (
        "file.disk_full",
        "the disk quota is used up",
        "free some space and run again; nothing was lost",
    ),
    errno.EFBIG: (
        "file.too_big",
        "the file is as big as it may be",
        "raise the limit on file sizes, or change path",
    ),
    errno.EACCES: (
        "file.no_permission",
        "no permission",
        "give the user that runs the pipeline the right to it",
    ),
    errno.EPERM: (
        "file.no_permission",
        "not permitted",
        "give the user that runs the pipeline the right to it",
    ),
    errno.EROFS: ("file.read_only", "the file system is read-only", "mount it for writing, or change path"),
    errno.ENOENT: ("file.missing", "there is no such file or folder", "create it, or correct the path"),
    errno.EISDIR: ("file.is_folder", "it is a folder", "name a file, or end the path with a slash"),
    errno.EEXIST: ("file.not_folder", "a part of the path is a file", "correct the path"),
    errno.ENOTDIR: ("file.not_folder", "a part of the path is a file", "correct the path"),
}


def from_os_error(error: OSError, doing: str) -> TransientError:
    """An error of the operating system as one that says what was done, where, and what to do next."""
    code, why, fix = _OS_ERRORS.get(error.errno or 0, ("file.error", error.strerror or str(error), None))
    place = str(error.filename) if error.filename else None
    return TransientError(f"{doing}: {why}", code=code, place=place, fix=fix)


def _rebuild(
    kind: type[ConduitError], message: str, code: str, place: str | None, fix: str | None, node: str | None
) -> ConduitError:
    return kind(message, code=code, place=place, fix=fix, node=node)
