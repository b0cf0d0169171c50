"""Rules of the protocol that a configuration may do without, and variants of what surrounds it."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """A rule of the delivery protocol."""

    PREPARE = "prepare"
    """Nothing is published before the step is prepared."""
    REACK = "re-ack"
    """Every source is acked at its stored position when a run starts."""
    EPOCH = "epoch"
    """Every transaction checks the lease's epoch."""
    NO_APPEND = "no-append"
    """A file is written at the base recorded by prepare, never appended to."""
    CUT = "cut"
    """A step and the successor it is cut to change in one transaction. Without: the step is void first."""
    CUT_VOID_FIRST = "cut-void-first"
    """The same. Without: the successor is planned first."""
    CUT_VOIDS_LATER = "cut-voids-later"
    """A cut voids all later steps in its transaction."""
    DIGEST = "digest"
    """Rebuilt staging must match the digests that were prepared."""
    GENERATION = "generation"
    """A delivery hash holds the generation of its source."""
    RESOLVE_IN_ORDER = "resolve-in-order"
    """A step is resolved only after the step before it is done."""
    TOKEN = "token"
    """Staged names hold a random token per execution."""
    HASH = "hash"
    """A destination stores the delivery hash with the rows."""
    ONE_NACK = "one-nack"
    """A source record makes at most one nack and one dead letter."""
    CLAIM_CHILD = "claim-child"
    """A rejected child's hash is claimed as nacked before the nack is recorded."""
    FAILURE_VOIDS = "failure-voids"
    """A run that stops after an error voids the steps planned ahead."""
    END_CONNECTIONS = "end-connections"
    """A new owner ends older connections."""
    LETTERS_FIRST = "letters-first"
    """Dead letters are published before the destinations."""
    NEVER_ANEW = "never-anew"
    """A prepared step is never planned anew."""
    REACK_FIRST = "re-ack-first"
    """The acks of a start come before recovery."""
    CLAIM_PARENT = "claim-parent"
    """A split delivery's hash is claimed as split before its first child is sent."""
    LETTER_HASH = "letter-hash"
    """Dead letters found at publishing have a number space of their own in their hashes."""
    ACK_MONOTONE = "ack-monotone"
    """A source ignores a lower ack."""
    ACK_GENERATION = "ack-generation"
    """A source ignores an ack of another generation."""
    ONCE_BASE = "once-base"
    """At-most-once: the next base is the previous base plus its length, and a gap is filled."""
    ONCE_NO_RESEND = "once-no-resend"
    """At-most-once: after an error nothing of a delivery is sent again."""
    FSYNC = "fsync"
    """What was published is synced before the step is done."""
    HOLDS_FIRST = "holds-first"
    """A destination is asked whether it holds a delivery before its staging is looked for."""


class Variant(StrEnum):
    """What a configuration may assume about its surroundings."""

    RENAME = "rename"
    """Publishing a folder takes its staging away."""
    NEVER_WRITTEN = "never-written"
    """A bulk error means that nothing was written."""
    MAY_REDECIDE = "may-redecide"
    """A step planned anew may decide differently."""


ALL = frozenset(Rule)
