"""The database's URL: what may be said about it, and what must never be."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, quote_plus

import psycopg
from psycopg.conninfo import conninfo_to_dict

_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")
_SECRETS = ("password", "sslpassword")


def conninfo(url: str) -> dict[str, str]:
    """The URL's parameters as libpq knows them; SQLAlchemy's ``postgresql+driver://`` is one as well.

    Raises ``ValueError`` that says nothing of what the URL holds: libpq's own message quotes it.
    """
    try:
        found = conninfo_to_dict(_DRIVER.sub(r"\1://", url.strip()))
    except psycopg.Error:
        raise ValueError("the url is no PostgreSQL URL") from None
    if not url.strip():
        raise ValueError("the url is empty")
    if not all(port.strip().isdigit() for port in str(found.get("port") or 5432).split(",") if port):
        raise ValueError("the port in the url is no number")
    return {key: str(value) for key, value in found.items() if value is not None}


class Server(NamedTuple):
    """A database as people may see it."""

    place: str
    """``host:port/database``."""
    database: str
    user: str
    secrets: tuple[str, ...]

    @staticmethod
    def of(parameters: dict[str, str]) -> Server:
        """The public parts of a URL's parameters."""
        host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
        user = parameters.get("user", "")
        database = parameters.get("dbname") or user
        found = [parameters[name] for name in _SECRETS if parameters.get(name)]
        spellings = [form for text in found for form in (text, quote(text, safe=""), quote_plus(text))]
        place = f"{host}:{parameters.get('port') or 5432}/{database}"
        return Server(place, database, user, tuple(sorted(set(spellings), key=len, reverse=True)))

    def scrub(self, text: str) -> str:
        """``text`` without any password of the URL."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text.strip()
