"""Settings of connectors that read or write files: ``path``; and ``collection``, a name or a pattern in file names."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any, Final

from conduit_dagster import storage
from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import compile_regex
from conduit_dagster.extras import unopenable
from conduit_dagster.record import Mode
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


COLLECTION_BYTES: Final = 255
_NO_NAMES: Final = frozenset({".", ".."})


class CollectionPattern:
    """The collection of each file: a fixed name, or the group of a regular expression searched in the file's name.

    A value with a parenthesis is an expression. The collection depends on the setting and the file's name only, so that
    a repeated step gives its records the same one.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._pattern = _compiled(text) if is_pattern(text) else None

    def of(self, file: str) -> str:
        """Return the collection for a file's name, without folders; empty if the expression does not match.

        Raises ``FatalError`` (``source.collection_unsafe``) for a group that is unsafe as a name of a path or table.
        """
        name = self.unchecked(file)
        if self._pattern is not None and name and not is_safe(name):
            raise FatalError(
                f"the file {file!r} would have the collection {name!r}, which may name another folder",
                code="source.collection_unsafe",
                place=file,
                fix="rename the file, or set collection to an expression whose group is a plain name: ^([a-z0-9_]+)",
            )
        return name

    def unchecked(self, file: str) -> str:
        """Return the result of :meth:`of`, or the unsafe group."""
        if self._pattern is None:
            return self._text
        found = self._pattern.search(file)
        return (found.group(1) or "") if found else ""


def modes_of(known: Iterable[str], unread: Collection[str]) -> dict[str, Mode]:
    """Return the mode of each collection: ``copy`` if one of its files is not fully read."""
    return {name: "copy" if name in unread else "complete" for name in sorted({*known, *unread}) if name}


def is_pattern(text: str) -> bool:
    """Return whether a ``collection`` is an expression, not a name."""
    return "(" in text


def is_safe(name: str) -> bool:
    """Return whether a name can't escape the folder that it is used in: destinations may use it in paths and tables."""
    if name in _NO_NAMES or len(name.encode("utf-8", "surrogatepass")) > COLLECTION_BYTES:
        return False
    return not any(sign in "/\\" or unicodedata.category(sign) in ("Cc", "Cs") for sign in name)


def check_collection(text: str) -> str:
    """Return the setting. Raises for an unsafe name, or an expression without exactly one group."""
    if is_pattern(text):
        _compiled(text)
    elif not is_safe(text):
        message = "a collection is a name without slashes, backslashes and control characters"
        raise refuse(message, fix="for example orders, or ^([a-z]+)-")
    return text


def check_name(text: str) -> str:
    """Return the setting of a source without file names. Raises for an expression as well."""
    if is_pattern(text):
        message = "only a name is possible here: there is no file name to take it from"
        raise refuse(message, fix="for example orders")
    return check_collection(text)


def _compiled(text: str) -> Any:
    pattern = compile_regex(text)
    if pattern.groups != 1:
        message = f"the expression has {pattern.groups} groups instead of one"
        raise refuse(message, fix="put the part that names the collection in parentheses, and others in (?:...)")
    return pattern
