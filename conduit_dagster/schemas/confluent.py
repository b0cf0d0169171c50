"""A registry that speaks the API of Confluent's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

import urllib3
from urllib3.util import Retry, Timeout, make_headers

from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.schemas.registry import Schema, UnknownSchemaError

_TYPE = "application/vnd.schemaregistry.v1+json"
_SECONDS = 10.0


class Access(NamedTuple):
    """How a registry lets us in."""

    username: str = ""
    password: str = ""
    ca: str = ""
    """Files: PEM."""
    certificate: str = ""
    key: str = ""


class ConfluentRegistry:
    """Safe for several threads."""

    def __init__(self, url: str, access: Access) -> None:
        parts = urlsplit(url)
        # a URL may hold the login; no message must
        username, password = access.username or parts.username or "", access.password or parts.password or ""
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
        self._headers = {"Accept": _TYPE, "Content-Type": _TYPE}
        if username:
            self._headers |= make_headers(basic_auth=f"{username}:{password}")
        self._pool = urllib3.PoolManager(
            ca_certs=access.ca or None,
            cert_file=access.certificate or None,
            key_file=access.key or None,
            retries=Retry(total=2, backoff_factor=0.1),
            timeout=Timeout(total=_SECONDS),
        )

    def by_id(self, number: int) -> Schema:
        """Raises :class:`UnknownSchemaError`."""
        return Schema(number, self._ask("GET", f"/schemas/ids/{number}")["schema"])

    def by_subject(self, subject: str, version: int) -> Schema:
        """Raises :class:`UnknownSchemaError`."""
        found = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        return Schema(found["id"], found["schema"])

    def register(self, subject: str, text: str) -> Schema:
        """The schema under this subject, as its newest version where it has it not yet.

        Raises ``FatalError`` (``schemas.refused``) where the registry does not take it.
        """
        found = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": text})
        return Schema(found["id"], text)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = self._pool.request(method, self._url + path, json=body, headers=self._headers)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(f"{type(error).__name__}") from error
        if answer.status == 404:
            raise UnknownSchemaError(f"the registry has nothing at {path}")
        if answer.status >= 500 or answer.status == 429:
            raise self._unreachable(f"it answered {answer.status}")
        if answer.status >= 300:
            said = answer.data[:200].decode("utf-8", "replace")
            raise FatalError(
                f"the schema registry refuses: {answer.status} {said}",
                code="schemas.refused",
                place=self._url + path,
                fix="look at the login, and at the subject's compatibility",
            )
        return answer.json()

    def _unreachable(self, reason: str) -> TransientError:
        return TransientError(
            f"the schema registry can't be reached: {reason}",
            code="schemas.unreachable",
            place=self._url,
            fix="see whether it runs",
        )
