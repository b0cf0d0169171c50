"""Which dead letters an operator means."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder
from conduit_dagster.engine.dead_letters.search import Letters, tally
from conduit_dagster.engine.operate.desk import Desk
from conduit_dagster.engine.operate.filters import Filters
from conduit_dagster.engine.operate.moments import moment
from conduit_dagster.engine.operate.refused import refused
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.dead_letters import OPEN, Key, Wanted, reasons

_REASON = ("node", "code", "letters")


@dataclass(frozen=True)
class Selection:
    """Which open letters are meant."""

    wanted: Wanted = field(default_factory=Wanted)
    where: str = ""

    def facts(self, desk: Desk) -> tuple[list[dict[str, Any]], Wanted]:
        """How many there are by reason, and what to tell the store. Raises ``FatalError`` (``dead_letters.none``)."""
        wanted = self.wanted._replace(states=OPEN)
        if self.where:
            counts, keys = tally(letters_of(desk).search(wanted, self.where), ("node", "code"))
            wanted = Wanted(OPEN, keys=keys)
        else:
            counts = [{k: row[k] for k in _REASON} for row in reasons(desk.store.engine, desk.id, wanted)]
        if not counts:
            raise _none(desk)
        return counts, wanted


def wanted_of(filters: Filters, pipeline: str, states: Sequence[str] = OPEN) -> Wanted:
    """As the index is asked. Raises ``FatalError`` (``usage.since``, ``usage.letter``)."""
    now = time.time_ns()
    since, until = (
        None if text is None else moment(text, now, name)
        for name, text in (("since", filters.since), ("until", filters.until))
    )
    keys = None if filters.ids is None else [_key_of(text, pipeline) for text in filters.ids]
    names = (filters.node, filters.code, filters.source, filters.namespace)
    return Wanted(states, *names, since, until, filters.part, keys)


def selection_of(filters: Filters, pipeline: str) -> Selection:
    """As an operation is told. Raises as :func:`wanted_of`."""
    return Selection(wanted_of(filters, pipeline), filters.where)


def letters_of(desk: Desk) -> Letters:
    """The pipeline's letters."""
    archive = Archive(archive_folder(desk.options.log_url, desk.id))
    return Letters(desk.store.engine, archive, desk.id)


def total(counts: Sequence[dict[str, Any]]) -> int:
    """Of all reasons."""
    return sum(row["letters"] for row in counts)


def parse_id(text: str) -> tuple[str, Key]:
    """Pipeline and key of a letter's id; the pipeline may be left out. Raises ``FatalError`` (``usage.letter``)."""
    pipeline, _, key = text.rpartition("/")
    step, _, number = key.partition(".")
    if not (step.isascii() and step.isdecimal() and number.isascii() and number.isdecimal()):
        fix = "conduit-dagster dlq list prints them: PIPELINE/STEP.NUMBER"
        raise refused("usage.letter", f"{text} is no dead letter's id", fix)
    return pipeline, (int(step), int(number))


def _key_of(text: str, pipeline: str) -> Key:
    of, key = parse_id(text)
    if of not in ("", pipeline):
        raise refused("usage.letter", f"{text} is a dead letter of {of}, not of {pipeline}", "name one of its own")
    return key


def _none(desk: Desk) -> FatalError:
    message = f"pipeline {desk.id} has no open dead letter of that kind: nothing was changed"
    return refused("dead_letters.none", message, f"conduit-dagster dlq list {desk.id} --state all shows what there is")
