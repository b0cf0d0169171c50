"""Paths in connectors' settings: refuse paths invalid on any file system, and URLs that can't be opened here."""

from __future__ import annotations

import os
import sys
from typing import Final

from conduit_dagster import storage
from conduit_dagster.config.findings import refuse
from conduit_dagster.extras import unopenable
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext

NAME_BYTES: Final = 255
"""Maximum length of a file or folder name on Linux file systems."""
PATH_BYTES: Final = 4095
"""Maximum length of a path in a system call."""


def valid_path(path: str) -> str:
    """Return the path of a setting. Raises if it is empty, or invalid on every file system."""
    if not path.strip():
        raise refuse("path is empty", fix="name a file, a folder or a glob")
    return possible_path(path)


def possible_path(path: str) -> str:
    """Return the path of a setting, which may be empty. Raises if it is invalid on every file system, or here."""
    if "\0" in path:
        raise refuse("the path holds a NUL character, which no path can", fix="remove it")
    try:
        data = path.encode()
    except UnicodeEncodeError:
        raise refuse(
            "the path holds half of a character: it is not UTF-8 text", fix="write the character itself"
        ) from None
    if not storage.is_local(path):
        return path
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        message = f"no such path can be opened here: this process's locale encodes names as {encoding}"
        raise refuse(message, fix="run it with LC_ALL=C.UTF-8 or PYTHONUTF8=1") from None
    longest = max(map(len, data.split(b"/")))
    if longest > NAME_BYTES:
        message = f"a name in the path is {longest} bytes long; file systems take at most {NAME_BYTES}"
        raise refuse(message, fix="shorten it")
    if len(data) > PATH_BYTES:
        raise refuse(f"the path is {len(data)} bytes long, the limit is {PATH_BYTES}", fix="shorten it")
    return path


def located(context: ConnectorContext, path: str) -> str:
    """Return a setting's path, made absolute against the project root; a URL is returned unchanged.

    Raises ``FatalError`` (``file.path_too_long``, ``file.not_local``) for a path that no process here can open. Opens
    nothing.
    """
    url = context.resolve(path)
    local = storage.local_path(url)
    if local is not None and (size := len(os.fsencode(local))) > PATH_BYTES:
        raise FatalError(
            f"with the project's folder the path is {size} bytes long, the limit is {PATH_BYTES}",
            code="file.path_too_long",
            fix="shorten it",
        )
    if (problem := unopenable(url)) is not None:
        raise FatalError(problem.message, code="file.not_local", fix=problem.fix)
    return url


def shown_path(context: ConnectorContext, path: str, url: str) -> str:
    """Return a file's path for metadata, as a setting's ``path`` is written: relative to the project, or not."""
    is_relative = storage.is_local(path) and not path.startswith(("/", "file:"))
    return os.path.relpath(url, context.root) if is_relative else url
