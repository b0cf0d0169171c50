"""What the text of an error says of its class: a note of ours, or JSON with a code (reference 3, phase 2)."""

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
    """How much a finding weighs: a class that somebody chose goes before a code, a known code before an unknown one."""

    RAISED = 0
    CODED = 1
    UNKNOWN = 2


class Said(NamedTuple):
    """An error that was found inside another's text."""

    rank: Rank
    error: ConduitError


_NOTE = re.compile(rf"^(?P<group>[ ]*\|)?[ |]*{MARK}(?P<json>\{{.*\}})\s*$", re.MULTILINE)
# a traceback tells causes first: what stands behind the last of these is the outermost exception
_CHAIN = re.compile(
    r"(?:The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:)"
)
# the source lines of a traceback may look like JSON, and are not what was raised
_FRAME = re.compile(r"^[ |]*  File \".*\n(?:[ |]*    .*(?:\n|\Z))*", re.MULTILINE)
_CLASS_BEFORE = re.compile(r"[\s|]*(?:[\w.]+: )?")
_MOST_OBJECTS = 200
_DECODER = json.JSONDecoder(strict=False)


def said_by(text: str) -> Said | None:
    """What a text tells of a classified error inside it, the outermost one; None where it tells of none.

    Understands notes of ours behind any wrapper's words, and JSON ``{"code": 422, "message": "..."}``: alone on its
    line or behind an exception's class the code is enough, elsewhere in a text the message must be there too, since
    plain texts quote records.
    """
    parts = _CHAIN.split(text)[::-1] if MARK in text or "{" in text else []
    for part in parts:
        if (noted := _noted(part)) is not None:
            return Said(Rank.RAISED, noted)
    found = [said for part in parts for said in _coded(_FRAME.sub("", part))]
    return min(found, key=lambda said: said.rank, default=None)


def from_fields(fields: Mapping[str, Any]) -> ConduitError:
    """The error that JSON describes: ``code``, ``message``, ``node``, ``place``, ``fix``.

    ``fatal``, where it is there, decides; else the code does.
    """
    message = str(fields.get("message") or f"error {fields.get('code')}")
    more = {name: str(fields[name]) for name in ("node", "place", "fix") if fields.get(name) is not None}
    code = fields["code"]
    if isinstance(fatal := fields.get("fatal"), bool):
        return (FatalError if fatal else TransientError)(message, code=code, **more)
    return coded(message, code=code, **more)


def _noted(part: str) -> ConduitError | None:
    """The first note: wrappers put what they wrap behind their own words. Of a group's members a fatal one."""
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


def _coded(text: str) -> Iterator[Said]:
    for start, fields in _objects(text):
        line = text[text.rfind("\n", 0, start) + 1 : start]
        if fields["code"] is None or not (_CLASS_BEFORE.fullmatch(line) or isinstance(fields.get("message"), str)):
            continue
        code = fields["code"]
        known = isinstance(fields.get("fatal"), bool) or (is_code(code) and class_of(code) is not None)
        yield Said(Rank.CODED if known else Rank.UNKNOWN, from_fields(fields))


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for match in islice(re.finditer(r"\{", text), _MOST_OBJECTS):
        try:
            value, _ = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "code" in value:
            yield match.start(), cast(dict[str, Any], value)
