"""Classification of an error by its text: a ``ConduitError`` note, or JSON with a code (reference 3, phase 2)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple, cast

from conduit_dagster.recovery.codes import class_of, is_code
from conduit_dagster.recovery.errors import MARK, ConduitError, FatalError, TransientError, coded


class Rank(IntEnum):
    """Precedence of findings: an explicitly chosen class before a code, a known code before an unknown one."""

    RAISED = 0
    CODED = 1
    UNKNOWN = 2


class FoundError(NamedTuple):
    """An error found inside another error's text."""

    rank: Rank
    error: ConduitError


_NOTE = re.compile(rf"^(?P<group>[ ]*\|)?[ |]*{MARK}(?P<json>\{{.*\}})\s*$", re.MULTILINE)
# a traceback lists causes first: the outermost exception follows the last of these
_CHAIN = re.compile(
    r"(?:The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:)"
)
# the source lines of a traceback may look like JSON, but are not part of the error
_FRAME = re.compile(r"^[ |]*  File \".*\n(?:[ |]*    .*(?:\n|\Z))*", re.MULTILINE)
_CLASS_BEFORE = re.compile(r"[\s|]*(?:[\w.]+: )?")
_MOST_OBJECTS = 200
_DECODER = json.JSONDecoder(strict=False)


def said_by(text: str) -> FoundError | None:
    """Return the outermost classified error in a text; None if there is none.

    Recognizes notes of ``ConduitError`` after any wrapper's text, and JSON ``{"code": 422, "message": "..."}``: alone
    on its line or after an exception's class the code is enough; elsewhere the message is required too, since plain
    texts quote records.
    """
    parts = _CHAIN.split(text)[::-1] if MARK in text or "{" in text else []
    for part in parts:
        if (noted := _noted(part)) is not None:
            return FoundError(Rank.RAISED, noted)
    found = [said for part in parts for said in _coded(_FRAME.sub("", part))]
    return min(found, key=lambda said: said.rank, default=None)


def from_fields(fields: Mapping[str, Any]) -> ConduitError:
    """Return the error that a JSON object describes: ``code``, ``message``, ``node``, ``place``, ``fix``.

    ``fatal``, if present, decides the class; otherwise the code does.
    """
    message = str(fields.get("message") or f"error {fields.get('code')}")
    more = {name: str(fields[name]) for name in ("node", "place", "fix") if fields.get(name) is not None}
    code = fields["code"]
    if isinstance(fatal := fields.get("fatal"), bool):
        return (FatalError if fatal else TransientError)(message, code=code, **more)
    return coded(message, code=code, **more)


def _noted(part: str) -> ConduitError | None:
    """Return the error of the first note, since wrappers append the wrapped text; in a group, a fatal member first."""
    found: list[tuple[bool, ConduitError]] = []
    for match in _NOTE.finditer(part):
        try:
            found.append((match["group"] is not None, from_fields(json.loads(match["json"]))))
        except (ValueError, KeyError, RecursionError):
            continue
    if not found:
        return None
    members = [error for grouped, error in found if grouped]
    return next((error for error in members if found[0][0] and error.fatal), found[0][1])


def _coded(text: str) -> Iterator[FoundError]:
    for start, fields in _objects(text):
        line = text[text.rfind("\n", 0, start) + 1 : start]
        if fields["code"] is None or not (_CLASS_BEFORE.fullmatch(line) or isinstance(fields.get("message"), str)):
            continue
        code = fields["code"]
        known = isinstance(fields.get("fatal"), bool) or (is_code(code) and class_of(code) is not None)
        yield FoundError(Rank.CODED if known else Rank.UNKNOWN, from_fields(fields))


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for match in islice(re.finditer(r"\{", text), _MOST_OBJECTS):
        try:
            value, _ = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "code" in value:
            yield match.start(), cast(dict[str, Any], value)
