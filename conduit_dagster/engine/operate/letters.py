"""Dead letters selected by an operator: replayed, or discarded."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from pydantic import ValidationError

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, is_edit
from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder
from conduit_dagster.engine.dead_letters.search import DeadLetterSearch, tally
from conduit_dagster.engine.open_work import give_back, prepared_replay, with_replay
from conduit_dagster.engine.operate.filters import Filters
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, StoreLock
from conduit_dagster.engine.operate.source_positions import moment
from conduit_dagster.engine.program import Replay
from conduit_dagster.engine.recover import start_up
from conduit_dagster.engine.registering import attach_logs, fence
from conduit_dagster.engine.report import StepReport
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.connector_registrations import next_generation
from conduit_dagster.state.dead_letter_replays import letters_in
from conduit_dagster.state.dead_letters import OPEN, DeadLetterQuery, Key, reasons
from conduit_dagster.state.letter_index import UnindexedPart

NO_LETTERS = "dead_letters.none"
_REASON = ("node", "code", "letters")


@dataclass(frozen=True)
class DeadLetterSelection:
    """Selection of open letters."""

    wanted: DeadLetterQuery = field(default_factory=DeadLetterQuery)
    where: str = ""

    def facts(self, lock: StoreLock) -> tuple[list[dict[str, Any]], DeadLetterQuery]:
        """Return counts by reason, and the query for the store. Raises ``FatalError`` (``dead_letters.none``)."""
        wanted = self.wanted._replace(states=OPEN)
        if self.where:
            counts, keys = tally(_letters_of(lock).search(wanted, self.where), ("node", "code"))
            wanted = DeadLetterQuery(OPEN, keys=keys)
        else:
            counts = [{k: row[k] for k in _REASON} for row in reasons(lock.store.engine, lock.id, wanted)]
        if not counts:
            raise _none(lock)
        return counts, wanted


def wanted_of(filters: Filters, pipeline: str, states: Sequence[str] = OPEN) -> DeadLetterQuery:
    """Return the query for the index. Raises ``FatalError`` (``usage.since``, ``usage.letter``)."""
    now = time.time_ns()
    since, until = (
        None if text is None else moment(text, now, name)
        for name, text in (("since", filters.since), ("until", filters.until))
    )
    keys = None if filters.ids is None else [_key_of(text, pipeline) for text in filters.ids]
    names = (filters.node, filters.code, filters.source, filters.namespace)
    return DeadLetterQuery(states, *names, since, until, filters.part, keys)


def selection_of(filters: Filters, pipeline: str) -> DeadLetterSelection:
    """Return the selection for an operation. Raises as :func:`wanted_of`."""
    return DeadLetterSelection(wanted_of(filters, pipeline), filters.where)


def _letters_of(lock: StoreLock) -> DeadLetterSearch:
    """Return a search over the pipeline's letters."""
    archive = Archive(archive_folder(lock.options.log_url, lock.id))
    return DeadLetterSearch(lock.store.engine, archive, lock.id)


def _total(counts: Sequence[dict[str, Any]]) -> int:
    """Return the total over all reasons."""
    return sum(row["letters"] for row in counts)


def parse_id(text: str) -> tuple[str, Key]:
    """Return pipeline and key of a letter's id; the pipeline is optional. Raises ``FatalError`` (``usage.letter``)."""
    pipeline, _, key = text.rpartition("/")
    # numbers that the store can hold
    match = re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})", key)
    if match is None:
        fix = "conduit-dagster dlq list shows them"
        raise refused("usage.letter", f"{text!r} is not a dead-letter id; expected PIPELINE/STEP.NUMBER", fix)
    return pipeline, (int(match[1]), int(match[2]))


def _key_of(text: str, pipeline: str) -> Key:
    of, key = parse_id(text)
    if of not in ("", pipeline):
        raise refused("usage.letter", f"{text} is a dead letter of {of}, not of {pipeline}", "name one of its own")
    return key


def _none(lock: StoreLock) -> FatalError:
    message = f"pipeline {lock.id} has no open dead letter of that kind: nothing was changed"
    return refused(NO_LETTERS, message, f"conduit-dagster dlq list {lock.id} --state all shows what there is")


def discard(lock: StoreLock, selection: DeadLetterSelection, note: str, dry_run: bool = False) -> dict[str, Any]:
    """Close the selected open letters, with a note. Queue and archive keep their records.

    Those in a prepared step of a replay that did not end are delivered whatever happens: ``held`` in the result counts
    them, and they stay. Where a file of the archive was lost before its letters had rows, and all of it is selected,
    they get none. Raises ``FatalError`` (``dead_letters.none``, ``usage.note``).
    """
    if not note.strip():
        raise refused("usage.note", "the note is empty", "say why they will not be sent again")
    if not dry_run:
        give_back(lock.store)  # letters of a killed replay
    part = None if selection.where else _lost_part(lock, selection.wanted)
    if part is None:
        return _discard(lock, selection, note.strip(), dry_run)
    left = part.letters - part.indexed
    facts: dict[str, Any] = {"pipeline": lock.id, "letters": 0, "reasons": [], "note": note.strip(), "held": 0}
    if reasons(lock.store.engine, lock.id, selection.wanted):
        facts = _discard(lock, selection, note.strip(), dry_run)
    if not dry_run:
        lock.store.letter_index.give_up(part, note.strip(), lock.by)
    discarded = 0 if dry_run else facts.get("discarded", 0) + left
    return {**facts, "letters": facts["letters"] + left, "discarded": discarded}


def _discard(lock: StoreLock, selection: DeadLetterSelection, note: str, dry_run: bool) -> dict[str, Any]:
    counts, wanted = selection.facts(lock)
    prepared = prepared_replay(lock.store.load())
    held = 0 if prepared is None else lock.store.replays.held(prepared, wanted)
    facts = {"pipeline": lock.id, "letters": _total(counts), "reasons": counts, "note": note, "held": held}
    if held == facts["letters"]:
        raise _held(held)
    if dry_run:
        return {**facts, "discarded": 0}
    return {**facts, "discarded": lock.store.replays.discard(wanted, note, lock.by)}


def _held(letters: int) -> FatalError:
    subject = "this dead letter is" if letters == 1 else f"these {letters:,} dead letters are"
    message = f"{subject} in the prepared step of a replay that did not end, and nothing was changed"
    return refused(NO_LETTERS, message, "conduit-dagster run --once ends it; what fails again may be discarded then")


def _lost_part(lock: StoreLock, wanted: DeadLetterQuery) -> UnindexedPart | None:
    """Return the file that ``wanted`` names, and nothing else, if letters of it have no rows and it can't be read.

    None for one of a replay: which of its letters failed again is only there.
    """
    if wanted.part is None or wanted._replace(part=None) != DeadLetterQuery(wanted.states):
        return None
    found = next((one for one in lock.store.letter_index.unindexed() if one.name == wanted.part), None)
    if found is None or found.plan.replay or _is_readable(lock, found.name):
        return None
    return found


def _is_readable(lock: StoreLock, part: str) -> bool:
    try:
        for _ in Archive(archive_folder(lock.options.log_url, lock.id)).index(part):
            pass
    except FatalError:
        return False
    return True


_ERRORS = 5
"""Maximum number of reasons in the result of a replay."""


def replay(
    lock: PipelineLock,
    selection: DeadLetterSelection,
    start: Literal["source", "node"] = "source",
    edits: list[tuple[str, str]] | None = None,
    dry_run: bool = False,
    go_on: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Send the selected open letters through the pipeline as its file defines it now.

    A step that an earlier run left prepared is finished first. Each step of a replay follows the same protocol, so a
    kill at any moment loses and duplicates nothing: letters in no prepared step are open again. A letter that fails
    again stays open, with its new reason. Positions, offsets and the nack window do not move. ``go_on`` is called
    between steps. ``unusable`` in the result counts selected letters that no replay can send; they stay open.
    ``closed`` counts those that only destinations missed which have left the file.

    Raises ``FatalError`` (``dead_letters.*``, ``usage.*``) and any error that a run may fail with.
    """
    counts, wanted = selection.facts(lock)
    closed = lock.store.replays.missed_by_others([node.id for node in lock.pipeline.outputs], wanted)
    facts: dict[str, Any] = {"pipeline": lock.id, "from": start, "letters": _total(counts), "reasons": counts}
    facts |= {"closed": closed, "dry_run": dry_run}
    nothing = {"replay": 0, "taken": 0, "replayed": 0, "failed": 0, "failed_by": [], "errors": [], "delivered": {}}
    # its deliveries are named by its id: a destination must not take them for those of an earlier replay
    order = Replay(next_generation(lock.store.replays.last()), start, edits or [])
    edited = lock.of(_edited(lock, order))
    if dry_run:
        left = _unusable(edited, wanted)
        if left == facts["letters"]:
            raise _none_usable(lock)
        return {**facts, **nothing, "unusable": left}
    earlier = _Earlier(lock)
    finish_open_steps(lock, earlier.report)
    try:
        _, wanted = selection.facts(lock)
    except FatalError as error:
        if error.code != NO_LETTERS:
            raise
        # they were in a prepared step of a killed replay, or are closed
        return {**facts, **earlier.added_to({**nothing, "unusable": 0, "replay": earlier.id})}
    left = _unusable(edited, wanted)
    done = _Replaying(edited, order, wanted, go_on).run()
    return {**facts, "unusable": left, **earlier.added_to(done)}


class _Earlier:
    """A replay that did not end: its prepared step is finished first, and counts as done by this command."""

    def __init__(self, lock: PipelineLock) -> None:
        self._store = lock.store.replays
        prepared = prepared_replay(lock.store.load())
        self._step = None if prepared is None else prepared.step
        self.id = 0 if prepared is None else prepared.replay
        self._before = self._outcome()
        self._delivered = Counter[str]()

    def _outcome(self) -> Counter[tuple[str, str, str]]:
        rows = self._store.outcome(self.id) if self.id else []
        return Counter({(row["state"], row["node"], row["code"]): row["letters"] for row in rows})

    def report(self, step: StepReport) -> None:
        """Count what the step delivers."""
        if step.step == self._step:
            self._delivered.update(_delivered(step))

    def added_to(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of this replay with what became of the letters of that step and is not sent once more."""
        more = self._outcome() - self._before
        replayed = sum(letters for (state, *_), letters in more.items() if state == "replayed")
        again = [{"node": node, "code": code, "letters": n} for (state, node, code), n in more.items() if state in OPEN]
        return {
            **facts,
            "replayed": facts["replayed"] + replayed,
            "failed": facts["failed"] + _total(again),
            "failed_by": [*facts["failed_by"], *again],
            "delivered": self._delivered + Counter(facts["delivered"]),
        }


def _delivered(step: StepReport) -> dict[str, int]:
    return {name: records for name, records in step.delivered.items() if records and name != DEAD_LETTERS}


def _edited(lock: PipelineLock, order: Replay) -> BoundPipeline:
    try:
        return with_replay(lock.bound, order)
    except ValueError as error:
        message = error.errors()[-1]["msg"] if isinstance(error, ValidationError) else str(error)
        fix = """--set '.Payload.After.field=EXPRESSION', text in quotes: --set '.Payload.After.day="2024-02-01"'"""
        raise refused("usage.edit", f"--set can't be followed: {message}", fix) from None


def _names(lock: PipelineLock) -> dict[str, str]:
    """Return the name of the replay of each source in the file."""
    return {node.origin: node.id for node in lock.pipeline.inputs if node.is_replay}


def _unusable(lock: PipelineLock, wanted: DeadLetterQuery) -> int:
    """Return how many of the letters can't be sent again: not in the archive, or their source left the file."""
    return lock.store.replays.unusable(_names(lock), wanted)


def finish_open_steps(lock: PipelineLock, report: Callable[[StepReport], None] = lambda step: None) -> None:
    """Fence off earlier owners and finish every open step, so that new steps can be planned."""
    attach_logs(lock.pipeline, lock.store, lock.options.log_url)
    fence(lock.pipeline, lock.store)
    start_up(lock.loop(report), plans=False)


class _Replaying:
    def __init__(self, lock: PipelineLock, order: Replay, wanted: DeadLetterQuery, go_on: Callable[[], bool]) -> None:
        self._lock, self._order, self._wanted, self._go_on = lock, order, wanted, go_on
        self._delivered = Counter[str]()
        self._errors: dict[tuple[str, str], str] = {}
        self._names = _names(lock)

    def run(self) -> dict[str, Any]:
        lock, order = self._lock, self._order
        reached("before-replay", lock.id)
        unit = {**msgspec.to_builtins(order), "by": lock.by}
        taken = lock.store.replays.begin(order.id, self._names, unit, self._wanted)
        reached("after-replay", lock.id)
        if not taken:
            lock.store.replays.give_back()
            raise _none_usable(lock)
        loop = lock.loop(self._report)
        try:
            while self._go_on() and (plan := loop.planner.plan_replay()) is not None:
                loop.execute(plan)
        except (Exception, KeyboardInterrupt):
            # after a kill the next run does this
            give_back(lock.store)
            raise
        give_back(lock.store)
        return self._ended(taken)

    def _report(self, step: StepReport) -> None:
        self._delivered.update(_delivered(step))
        for row in step.dead_letters:
            self._errors.setdefault((row.node, row.code), row.message)

    def _ended(self, taken: int) -> dict[str, Any]:
        order, found = self._order, self._lock.store.replays.outcome(self._order.id)
        failed = [{k: row[k] for k in _REASON} for row in found if row["state"] == "open"]
        replayed = letters_in(found, "replayed")
        facts = {"replay": order.id, "taken": taken, "replayed": replayed, "failed": _total(failed)}
        # a step reports a few of its letters; one that an edit failed for keeps the reason that it had
        more = () if any(is_edit(node) for node, _ in self._errors) else ((row["node"], row["code"]) for row in failed)
        why = {**dict.fromkeys(more, ""), **self._errors}
        errors = [{"node": node, "code": code, "message": text} for (node, code), text in why.items()]
        return {**facts, "failed_by": failed, "errors": errors[:_ERRORS], "delivered": self._delivered}


def parse_edit(text: str) -> tuple[str, str]:
    """Parse ``FIELD=EXPRESSION`` to field and expression. Raises ``FatalError`` (``usage.edit``)."""
    field_, equals, expression = text.partition("=")
    if not (equals and field_.strip() and expression.strip()):
        raise refused("usage.edit", f"{text} is not FIELD=EXPRESSION", "such as '.Payload.After.amount=0'")
    return field_.strip(), expression.strip()


def _none_usable(lock: PipelineLock) -> FatalError:
    return refused(
        "dead_letters.not_kept",
        "none of these letters can be sent again: their records are not in the archive, or the file has no source of"
        " their name: it was removed, or fan-in changed from or to join",
        f"put a source that was removed or renamed back with its id, or fan-in: conduit-dagster dlq list {lock.id}"
        " shows it; records that the archive does not have are in the queue",
    )
