"""What must not be shown of a setting's value."""

from __future__ import annotations

import re

_IN_URL = re.compile(r"(://[^/@\s:]*:)[^@\s]+@")
_NAMED = re.compile(r"(?i)\b((?:password|passwd|pwd|secret|token)\s*=\s*)('[^']*'|[^\s&;]+)")


def masked(text: str) -> str:
    """``text`` with the passwords of its URLs, and what it names as a password, as three stars."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1***@", text))
