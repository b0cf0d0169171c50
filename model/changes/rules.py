"""The rules for pipelines that change. A protocol is the set of rules it follows; the earlier one followed none."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """One rule of the delivery protocol, "When the pipeline changes"."""

    FINISH_FIRST = "finish-first"
    """Open steps end before anything is registered. Before: registering came first."""
    RETIRE_VOIDS = "retire-voids"
    """A removed destination is retired before open steps end, in one transaction with what is open for it: its
    deliveries and the planned steps that name it are void."""
    RETIRE_LETTERS = "retire-letters"
    """A retired destination is taken off its dead letters: what comes back under its name is another one."""
    DECISION_OFFSETS = "offsets-of-decision"
    """A finished step moves the offsets of the consumers in its decision. Before: of all consumers in the file."""
    REFUSE_GAP = "refuse-gap"
    """A reader of the log that finds entries missing stops with an error. Before: it passed over them."""
    PROMISE_HOLDS = "promise-holds-compaction"
    """Compaction keeps the entries that a destination still has to catch up on."""
    HIGH_WATER = "high-water"
    """A new generation is above every one given before. Before: one above the current one."""
    UNITS_REMEMBERED = "units-remembered"
    """A unit that comes back goes on where it was, also with log: records. Before: only with log: positions."""
    KEEP_PROMISE = "keep-promise"
    """What a destination caught up on is remembered after start-from: log has left the file."""
    HASH_NAMES_LOG = "hash-names-log"
    """A delivery hash tells offsets of the log from positions of a source: the log can be switched on and off."""
    STAGED_LETTERS = "staged-letters"
    """A record refused at publishing becomes a dead letter from staging. Before: its range was read again."""
    FAILURE_CUTS = "failure-cuts"
    """A step is cut before the record at which its source fails. Before: all of it was discarded."""
    SWITCH_BEFORE_UNIT = "switch-before-unit"
    """Leaving the log stores its position under the logged unit. Before: a unit set in the same edit inherited it."""
    ACK_AGAIN = "ack-again"
    """Sources are acked at their stored positions once more after registering, since another unit may be current."""


ALL = frozenset(Rule)
AS_IT_WAS: frozenset[Rule] = frozenset({Rule.ACK_AGAIN})
"""Registering came first, so the ack at the start already followed it."""
