"""References in a setting, and their values: environment variables, files, and providers of secrets.

``${NAME}``, ``$NAME`` and ``${env:NAME}`` are variables, expanded as by Conduit (``os.ExpandEnv``), except that an
unset one is reported and ``$$`` is a dollar. ``${file:PATH}`` is a file's text, and ``${NAME:rest}`` asks the provider
registered under that name; their values are secrets.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, cast

from conduit_dagster.config.secret_providers import Unresolved, ask_provider
from conduit_dagster.secret_values import remember

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>[^}\n]*)\}|(?P<open>\{)|(?P<bare>[A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True)
class BadReference:
    """Reference that cannot be expanded. ``ordinal`` is its index among the references of the text, from 0."""

    ordinal: int
    text: str
    name: str | None
    """None if there is no name: ``${}`` or a brace that is never closed."""
    why: Unresolved | None = None
    """The problem, unless it is just an unset variable."""


class Lookup(Protocol):
    """Values by name: a mapping of environment variables, or everything that a document may refer to."""

    def get(self, name: str, /) -> str | Unresolved | None:
        """Return the value, or the problem of a reference; None for an unset variable."""
        ...


@dataclass(frozen=True)
class ExpandedText:
    """Text with its variables expanded; bad references stay as written."""

    text: str
    bad: tuple[BadReference, ...] = ()


def expand(text: str, values: Lookup) -> ExpandedText:
    """Replace ``${VAR}``, ``$VAR`` and ``${file:PATH}``; ``$$`` becomes one dollar, a lone dollar stays.

    Trap: as in Conduit, ``$x`` in a Go template is a reference too, and must be written ``$$x``.
    """
    if "$" not in text:
        return ExpandedText(text)
    parts: list[str] = []
    bad: list[BadReference] = []
    end = 0
    for ordinal, match in enumerate(_REFERENCE.finditer(text)):
        value = _value(match, values)
        if not isinstance(value, str):
            bad.append(BadReference(ordinal, match.group(), match["braced"] or match["bare"], value))
        parts += [text[end : match.start()], value if isinstance(value, str) else match.group()]
        end = match.end()
    return ExpandedText("".join([*parts, text[end:]]), tuple(bad))


def offset_of(source: str, ordinal: int) -> int:
    """Return the offset of the reference with this ordinal in the text as written, quotes included."""
    for number, match in enumerate(_REFERENCE.finditer(source)):
        if number == ordinal:
            return match.start()
    return 0


def _value(match: re.Match[str], values: Lookup) -> str | Unresolved | None:
    if match["dollar"]:
        return "$"
    name = match["braced"] or match["bare"]
    return values.get(name) if name else None


LARGEST_SECRET: Final = 64 * 1024
"""Bytes. Settings are sent with every task."""
_SCHEME = re.compile(r"([a-z][a-z0-9_.+\-]*):(?!-)(.*)", re.DOTALL)
"""A shell default, ``${name:-x}``, is not a reference: it names an unset variable, as in Conduit."""


FileStamp = tuple[int, int]
"""Modification time in ns and size: a different stamp means that the value may have changed."""


def stamp_of(path: str) -> FileStamp | None:
    """Return the stamp of a file; None if it is missing or can't be examined."""
    try:
        found = os.stat(path)  # noqa: PTH116  # a path as text, which may hold anything
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class FoundSecret:
    """A secret that a document refers to. Its repr does not contain the value."""

    reference: str
    value: str
    file: str | None = None
    """The absolute path of the file that holds it; None for a provider's."""

    def __repr__(self) -> str:
        return f"FoundSecret({self.reference!r})"

    @property
    def mark(self) -> str:
        """Replacement in a digest: for a file's secret a fingerprint of the value, for a provider's the reference.

        A provider may return another value each time, which must not count as a changed file.
        """
        return f"${{{self.reference}}}" if self.file is None else fingerprint(self.value)


class References:
    """Lookup for the references of one document; ``secrets`` are those that it resolved."""

    def __init__(self, env: Mapping[str, str], root: Path | None = None) -> None:
        """``root``: base of relative paths; None means the working directory."""
        self._env, self._root = env, Path.cwd() if root is None else root.absolute()
        self._found = dict[str, FoundSecret]()
        self.files = dict[str, FileStamp | None]()
        """Stamps of the files that were looked up, by absolute path; None for a missing one."""
        self.failed = False
        """Whether a provider failed, so that the same text may have another result later."""

    @property
    def secrets(self) -> tuple[FoundSecret, ...]:
        """Secrets resolved so far."""
        return tuple(self._found.values())

    def get(self, name: str) -> str | Unresolved | None:
        """Return the value of the text between the braces; None for an unset variable."""
        if name in self._env or (match := _SCHEME.fullmatch(name)) is None:
            return self._env.get(name)
        scheme, rest = match.groups()
        if scheme == "env":
            return self._variable(rest)
        if name in self._found:
            return self._found[name].value
        path = os.path.normpath(self._root / rest) if scheme == "file" and rest else None
        if path is not None:
            self.files[path] = stamp_of(path)
        value = _read(path, self._root) if scheme == "file" else ask_provider(scheme, rest)
        if isinstance(value, Unresolved):
            self.failed |= value.code == "config.secret_failed"
            return value
        remember([value])
        self._found[name] = FoundSecret(name, value, path)
        return value

    def _variable(self, name: str) -> str | Unresolved:
        value = self._env.get(name) if name else None
        if value is not None:
            return value
        if not name:
            return Unresolved("config.env_invalid", "${env:} names no environment variable", fix="write ${env:NAME}")
        fix = f"set {name}, or write $${{env:{name}}} literally"
        return Unresolved("config.env_unset", f"the environment variable {name} is not set", fix=fix)


def marked(data: Any, secrets: tuple[FoundSecret, ...]) -> Any:
    """Return data without the values of secrets: each is replaced by its mark, wherever it occurs in a text."""
    if not secrets:
        return data
    if isinstance(data, str):
        # longest first: a value may be part of another one
        for secret in sorted(secrets, key=lambda one: (-len(one.value), one.reference)):
            data = data.replace(secret.value, secret.mark)
        return data
    if isinstance(data, dict):
        return {key: marked(value, secrets) for key, value in cast(dict[Any, Any], data).items()}
    if isinstance(data, list):
        return [marked(value, secrets) for value in cast(list[Any], data)]
    return data


@lru_cache(maxsize=1_000)
def fingerprint(value: str) -> str:
    """Return a text that changes with the value, from which even a weak value can't be guessed quickly (scrypt)."""
    return hashlib.scrypt(value.encode(), salt=b"conduit-dagster", n=2**14, r=8, p=1, dklen=16).hex()


def _read(path: str | None, root: Path) -> str | Unresolved:
    if path is None:
        return _unreadable("the reference names no file", "write ${file:/run/secrets/NAME}")
    try:
        data = _bytes(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fix = f"check the path and its permissions; a relative path starts at {root}"
        return _unreadable(f"the secret's file {path} cannot be read: {reason}", fix)
    if len(data) > LARGEST_SECRET:
        message = f"the secret's file {path} is larger than {LARGEST_SECRET // 1024} KiB"
        return _unreadable(message, "name a file that holds the secret alone")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the secret's file {path} is not UTF-8: byte {error.start} cannot be read"
        return _unreadable(message, "store it as text: for binary values, in base64")
    if "\0" in text:
        return _unreadable(f"the secret's file {path} is binary", "store it as text: for binary values, in base64")
    text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
    return text or _unreadable(f"the secret's file {path} is empty", "write the secret to it")


def _bytes(path: str) -> bytes:
    """Return at most one byte more than allowed. Pipes and devices are refused: reading one may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        with open(descriptor, "rb", closefd=False) as stream:  # a descriptor
            return stream.read(LARGEST_SECRET + 1)
    finally:
        os.close(descriptor)


def _unreadable(message: str, fix: str) -> Unresolved:
    expected = f"a file of UTF-8 text, at most {LARGEST_SECRET // 1024} KiB"
    return Unresolved("config.secret_unreadable", message, expected, fix)
