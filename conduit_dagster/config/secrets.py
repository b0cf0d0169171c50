"""What must not be shown of a setting's value."""

from __future__ import annotations

import re

_IN_URL = re.compile(r"(://[^/@\s:]*:)[^@\s]+@")
_NAMED = re.compile(r"(?i)\b((?:password|passwd|pwd|secret|token)\s*=\s*)('[^']*'|[^\s&;]+)")

_CREDENTIAL = re.compile(r"passw|pwd|secret|token|credential|access\W?key|api\W?key|^user(name)?$", re.IGNORECASE)


def names_credential(key: str) -> bool:
    """Whether a setting with this name says who somebody is, and not what is read or written."""
    return _CREDENTIAL.search(key) is not None


def masked(text: str) -> str:
    """``text`` with the passwords of its URLs, and what it names as a password, as three stars."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1***@", text))
