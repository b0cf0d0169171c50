"""Which mutant of the engine stands for which rule of the model, and how its absence shows."""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.mutants import mutants_of_chains as chains
from engine.mutants import mutants_of_decisions as decisions
from engine.mutants import mutants_of_destinations as destinations
from engine.mutants import mutants_of_publishing as publishing


class Entry(NamedTuple):
    """The mutants of one rule."""

    mutants: tuple[Any, ...]
    shows: str
    """What breaks; or, where the model finds nothing that breaks without the rule either, what is looked at."""


TABLE = {
    "prepare": Entry((decisions.prepare,), "a record is delivered and nacked"),
    "reack": Entry((decisions.reack,), "the source is never acked"),
    "epoch": Entry((publishing.epoch,), "records are doubled"),
    "append": Entry((destinations.append,), "records are doubled; the file counts as changed by somebody else"),
    "cut": Entry((chains.cut,), "LOOKED AT: for a moment the store has no plan; no harm, as in the model"),
    "cutplanfirst": Entry((chains.cutplanfirst,), "records are doubled; two plans at one moment"),
    "cutvoidlater": Entry((chains.cutvoidlater,), "a record is lost"),
    "digest": Entry((decisions.digest,), "a record is delivered and nacked"),
    "gen": Entry((destinations.gen,), "records are lost"),
    "resolve": Entry((chains.resolve,), "the nack threshold is not obeyed"),
    "token": Entry((decisions.token,), "a record is delivered and nacked"),
    "hash": Entry(
        (destinations.folder_hash, destinations.postgres_hash, destinations.delta_hash), "records are doubled"
    ),
    "dlqonce": Entry((publishing.dlqonce,), "the step never ends: two dead letters have one name"),
    "kidclaim": Entry((publishing.kidclaim,), "a record is delivered and nacked"),
    "failvoid": Entry((chains.failvoid,), "LOOKED AT: steps stay planned; no harm, as in the model"),
    "kill": Entry((destinations.kill,), "the run waits for a frozen owner's transaction"),
    "dlqlast": Entry((publishing.dlqlast,), "LOOKED AT: the order; no harm, as in the model"),
    "noreplan": Entry((decisions.noreplan,), "a record is delivered and nacked"),
    "reackfirst": Entry((decisions.reackfirst,), "the source is not acked when the run fails"),
    "claim": Entry((publishing.claim, publishing.claim_heeded), "records are doubled"),
    "dlqkey": Entry((publishing.dlqkey,), "the step never ends: two dead letters have one name"),
    "ackset": Entry((publishing.ackset,), "the source's ack goes backwards; the rule is the source's"),
    "ackgen": Entry((publishing.ackgen,), "the source is acked ahead; the rule is the source's"),
    "amobase": Entry((destinations.amobase,), "a record is overwritten"),
    "amonoresend": Entry((publishing.amonoresend,), "records are doubled"),
    "fsync": Entry(
        (destinations.staging_sync, destinations.staged_sync, destinations.published_sync),
        "LOOKED AT: what was synced when the store commits, since no power is cut here",
    ),
    "holdsfirst": Entry((decisions.holdsfirst,), "a step that is done stops for its staging, without need"),
}
