"""Secret values that this process has read, and their masking in all text that leaves it.

A process reads secrets with its files, and a task with its pipeline; from then on :func:`hide` replaces them in every
error, finding, log line and output. It matches values, not places: a driver may quote a password in any text.
Credentials in a plugin's settings are masked like secrets.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TextIO, cast
from urllib.parse import quote, quote_plus, unquote

MASK: Final = "***"
SHORTEST: Final = 4
"""Characters. Shorter values are not masked: they would match words and numbers that are not secret."""
_LONG_LINE: Final = 16
"""Minimum number of characters for masking a single line of a multi-line value, such as a key."""
_SHORTEST_BASE64: Final = 8
"""Bytes. The Base64 of less is found by chance in other Base64."""
_BASE64: Final = re.compile(r"[\w+/-]{10,}=*", re.ASCII)
_PERCENT: Final = re.compile("%[0-9A-F]{2}")
_MOST: Final = 2_000
"""Maximum number of remembered values; the oldest are forgotten first."""
_IN_URL: Final = re.compile(r"(://[^/@\s:]*:)([^@\s]+)@")
_NAMED: Final = re.compile(
    r"(?i)(?<![A-Za-z0-9])([\w.-]*(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|(?<![\w])sig)\s*=\s*)"
    r"('[^']*'|\"[^\"]*\"|[^\s&;]+)"
)


class _Known:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values = dict[str, None]()
        self.pattern: re.Pattern[str] | None = None
        self.base64: re.Pattern[str] | None = None

    def add(self, values: Iterable[str]) -> None:
        with self._lock:
            new = {value: None for value in values if len(value) >= SHORTEST and value not in self._values}
            if new:
                self._put({**self._values, **new})

    def clear(self) -> None:
        with self._lock:
            self._put({})

    def _put(self, values: dict[str, None]) -> None:
        self._values = dict(list(values.items())[-_MOST:])
        forms = {form for value in self._values for form in _forms(value) if len(form) >= SHORTEST}
        # longest first: a value may begin with another one
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        self.pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        encoded = {form for value in self._values for form in _in_base64(value)}
        self.base64 = (
            re.compile(f"[\\w+/-]?(?:{'|'.join(map(re.escape, sorted(encoded)))})[\\w+/-]?=*") if encoded else None
        )


_known = _Known()


def remember(values: Iterable[str]) -> None:
    """Mask these values from now on, in this process; values of fewer than ``SHORTEST`` characters are left out."""
    _known.add(values)


def forget() -> None:
    """Forget all values. For tests that share a process."""
    _known.clear()


def hides_any() -> bool:
    """Return whether any value is known."""
    return _known.pattern is not None


def hide(text: str) -> str:
    """Return the text with every known value replaced by three stars: plain, percent-encoded, escaped or within Base64.

    Lone surrogates, as of file names and answers that are not UTF-8, are escaped: no store or stream can hold them.
    """
    pattern = _known.pattern
    shown = text if pattern is None else pattern.sub(MASK, text)
    if (encoded := _known.base64) is not None:
        shown = _BASE64.sub(lambda run: encoded.sub(MASK, run[0]), shown)
    return shown if shown.isascii() else shown.encode("utf-8", "backslashreplace").decode()


def masked(text: str) -> str:
    """Return ``text`` with passwords in URLs, values named as passwords, and known secrets replaced by three stars."""
    return hide(_NAMED.sub(r"\1***", _IN_URL.sub(r"\1***@", text)))


def passwords_in(text: str) -> list[str]:
    """Return the passwords in URLs and the values named as passwords, which :func:`masked` replaces."""
    return [match[2].strip("'\"") for pattern in (_IN_URL, _NAMED) for match in pattern.finditer(text)]


def hide_in(data: Any) -> Any:
    """Return JSON data with every known value masked in its texts; keys stay."""
    if _known.pattern is None:
        return data
    if isinstance(data, str):
        return hide(data)
    if isinstance(data, dict):
        return {key: hide_in(value) for key, value in cast(dict[Any, Any], data).items()}
    if isinstance(data, list | tuple):
        return [hide_in(value) for value in cast(list[Any], data)]
    return data


class HidingStream:
    """A text stream that masks known values, write by write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text with known values masked."""
        return self._stream.write(hide(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _forms(value: str) -> Iterator[str]:
    yield value
    yield value.strip()
    # as in a URL
    plain = value.encode("utf-8", "replace")
    for quoted in (quote(plain, safe=""), quote(plain), quote_plus(plain)):
        yield quoted
        yield _PERCENT.sub(lambda found: found[0].lower(), quoted)
    # as in JSON, in JSON within JSON, and in Python's repr
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]
    yield repr(value)[1:-1]
    # a log may be cut at a line end; a line of dashes only names the kind of key
    lines = [line.strip() for line in value.splitlines()] if "\n" in value else []
    yield from (line for line in lines if len(line) >= _LONG_LINE and not line.startswith("-----"))


def _in_base64(value: str) -> Iterator[str]:
    """Yield the value in Base64 of more, such as a login: its characters depend on the number of bytes before it.

    Without the first and last character, which may hold bits of what is beside it.
    """
    data = value.encode("utf-8", "replace")
    if len(data) < _SHORTEST_BASE64:
        return
    for before in range(3):
        text = base64.b64encode(bytes(before) + data + bytes(2)).decode()
        whole = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        yield whole
        yield whole.translate(_URL_SAFE)


_URL_SAFE: Final = str.maketrans("+/", "-_")


_KEY: Final = re.compile(
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|(?:api|access|private|secret|account)[\W_]?key|authorization)$",
    re.IGNORECASE,
)
_WORD = re.compile(r"[a-z]{1,11}|[0-9.]{1,5}")
"""Words not worth masking: never a serious password, but the type of a field, a switch or a number. Masking them would
spoil every text.
"""
_SCHEMES = ("basic ", "bearer ", "token ")
_LOGIN: Final = re.compile(r"passw|pwd|secret|token|credential|access\W?key|api\W?key|^user(name)?$", re.IGNORECASE)


def names_credential(key: str) -> bool:
    """Return whether a setting holds something to log in with, users included, as opposed to the name of something.

    Wider than the settings that are masked: a changed login leaves a connector's data as they are.
    """
    return _LOGIN.search(key) is not None


def remember_credentials(settings: Mapping[str, Any], plugin: str = "", unresolved: Collection[str] = ()) -> None:
    """Mask passwords in URLs, and values of settings named as credentials, from now on in this process.

    Except values that also occur in other settings or in the plugin's name, such as ``postgres`` as the password of
    ``postgres``, and short lower-case words, such as ``format.options.token: string``. ``unresolved``: references
    without a value, which stay as written and are no secrets: their findings quote them.
    """
    texts = {key: value for key, value in settings.items() if isinstance(value, str) and value}
    named = {key: value for key, value in texts.items() if _KEY.search(key) and not _WORD.fullmatch(value)}
    plain = "\n".join([plugin, *(masked(value) for key, value in texts.items() if key not in named)])
    found = [*named.values(), *(value.split(None, 1)[1] for value in named.values() if _has_scheme(value))]
    found += [secret for value in texts.values() for secret in _spellings(value)]
    remember(value for value in found if value not in plain and value not in unresolved)


def _has_scheme(value: str) -> bool:
    return value.lower().startswith(_SCHEMES) and len(value.split()) > 1


def _spellings(text: str) -> Iterator[str]:
    for written in passwords_in(text):
        yield written
        yield unquote(written)
