"""A registry in a folder: every task may use it that opens the folder's URL.

``texts/SHA256.json`` says which number a text has, ``ids/NUMBER.json`` which text a number has, and
``subjects/NAME/VERSION.json`` which number a version has. A file is made whole, once, and never changes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.schemas.registry import Schema, UnknownSchemaError
from conduit_dagster.state import storage


class FolderRegistry:
    """Safe for several tasks at once on a disk; on an object store where it creates a file only once."""

    def __init__(self, url: str) -> None:
        self._url = url

    def by_id(self, number: int) -> Schema:
        """Raises :class:`UnknownSchemaError`."""
        text = self._read("ids", f"{number:010d}")
        if text is None:
            raise UnknownSchemaError(f"the registry has no schema {number}")
        return Schema(number, text)

    def by_subject(self, subject: str, version: int) -> Schema:
        """Raises :class:`UnknownSchemaError`."""
        number = self._read(*_subject(subject), f"{version:010d}")
        if number is None:
            raise UnknownSchemaError(f"the registry has no version {version} of {subject}")
        return self.by_id(number)

    def register(self, subject: str, text: str) -> Schema:
        """The schema under this subject, as its newest version where it has it not yet."""
        schema = Schema(self._number(text), text)
        folder = _subject(subject)
        for version in self._numbers(*folder):
            if self._read(*folder, f"{version:010d}") == schema.id:
                return schema
        self._append(schema.id, *folder)
        return schema

    def _number(self, text: str) -> int:
        name = hashlib.sha256(text.encode()).hexdigest()
        if (known := self._read("texts", name)) is not None:
            return known
        number = self._append(text, "ids")
        # of two tasks that meet a new schema at once one says its number; nobody uses the other's
        return number if self._make(number, "texts", name) else self._read("texts", name)

    # -- files --------------------------------------------------------------------------------------------------

    def _append(self, value: Any, *folder: str) -> int:
        number = max(self._numbers(*folder), default=0) + 1
        while not self._make(value, *folder, f"{number:010d}"):
            number += 1
        return number

    def _numbers(self, *folder: str) -> list[int]:
        try:
            names = storage.files(storage.join(self._url, *folder))
        except OSError as error:
            raise _unreachable(self._url, error) from error
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())

    def _read(self, *names: str) -> Any:
        try:
            with storage.open_read(f"{storage.join(self._url, *names)}.json") as file:
                return msgspec.json.decode(file.read())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise _unreachable(self._url, error) from error

    def _make(self, value: Any, *names: str) -> bool:
        """Whether the file is new. It appears with all that is in it."""
        url, data = f"{storage.join(self._url, *names)}.json", msgspec.json.encode(value)
        try:
            storage.make_folder(url.rpartition("/")[0])
            return storage.put_new(url, data)
        except OSError as error:
            raise _unreachable(self._url, error) from error


def _subject(name: str) -> tuple[str, str]:
    return "subjects", storage.safe_name(name)


def _unreachable(url: str, error: Exception) -> TransientError:
    return TransientError(
        f"the schema registry can't be used: {error}", code="schemas.unreachable", place=url, fix="look at the folder"
    )
