"""The setting ``collection`` of file-based sources: a name, or a pattern that extracts it from the file's name."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable
from typing import Any, Final

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import compile_regex
from conduit_dagster.record import Mode
from conduit_dagster.recovery.errors import FatalError

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
