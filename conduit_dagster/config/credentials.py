"""Credentials among a plugin's settings: masked like secrets, and no part of a connector's identity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from conduit_dagster.secret_values import masked, passwords_in, remember

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


def remember_credentials(settings: Mapping[str, Any], plugin: str = "") -> None:
    """Mask passwords in URLs, and values of settings named as credentials, from now on in this process.

    Except values that also occur in other settings or in the plugin's name, such as ``postgres`` as the password of
    ``postgres``, and short lower-case words, such as ``format.options.token: string``.
    """
    texts = {key: value for key, value in settings.items() if isinstance(value, str) and value}
    named = {key: value for key, value in texts.items() if _KEY.search(key) and not _WORD.fullmatch(value)}
    plain = "\n".join([plugin, *(masked(value) for key, value in texts.items() if key not in named)])
    found = [*named.values(), *(value.split(None, 1)[1] for value in named.values() if _has_scheme(value))]
    found += [secret for value in texts.values() for secret in _spellings(value)]
    remember(value for value in found if value not in plain)


def _has_scheme(value: str) -> bool:
    return value.lower().startswith(_SCHEMES) and len(value.split()) > 1


def _spellings(text: str) -> Iterator[str]:
    for written in passwords_in(text):
        yield written
        yield unquote(written)
