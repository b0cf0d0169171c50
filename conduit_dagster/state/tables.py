"""The tables of the state store. Records never go there."""

from __future__ import annotations

from hashlib import sha256

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)
from typing_extensions import override


def words(text: str, longest: int | None = None) -> str:
    """Return the text as stored: cut to ``longest``, with NULs (invalid in PostgreSQL) and lone surrogates escaped."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\0", "\\x00")[:longest]


class SafeText(TypeDecorator[str]):
    """Text of limited or unlimited length. Values in conditions are escaped and cut as well."""

    impl = String
    cache_ok = True

    def __init__(self, longest: int | None = None) -> None:
        super().__init__(longest)
        self.longest = longest
        if longest is None:
            self.impl = Text()

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else words(value, self.longest)


class SafeKey(SafeText):
    """Text that identifies its row: a longer one ends in its digest, so that no two become equal."""

    cache_ok = True

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        whole = None if value is None else words(value)
        if whole is None or self.longest is None or len(whole) <= self.longest:
            return whole
        digest = sha256(whole.encode()).hexdigest()
        return whole[: self.longest - len(digest)] + digest


VERSION = 5
"""Increase it with every change to a table, together with a revision in ``migrations/versions`` that makes the change.
"""

LONGEST = 256
"""Maximum length of a namespace; a longer one is cut, and may then share its row with another."""
LONGEST_CODE = 128

metadata = MetaData()

meta = Table(
    "conduit_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

pipelines = Table(
    "conduit_pipelines",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("heartbeat", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),  # JSON; empty if the lease is free
    Column("status", String(16), nullable=False),
    Column("reason", String(16), nullable=False),  # user | system | empty; user outlasts a drain by hand
    Column("error", Text, nullable=False),  # JSON of the first error; otherwise empty
    Column("next_step", BigInteger, nullable=False),
    Column("window", Text, nullable=False),  # '1' a nack, '0' an ack, the newest last
    Column("file", SafeText(), nullable=False),
    Column("txn", String(32), nullable=False, server_default=""),  # the owner's last transaction, to repeat it safely
    Column("updated_ns", BigInteger, nullable=False),
)

sources = Table(
    "conduit_sources",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("source", String(256), primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("unit", Text, nullable=False),  # JSON: identity of the data
    Column("position", Text, nullable=False),  # JSON
    Column("records", BigInteger, nullable=False),  # handled end to end in all generations: the next record's offset
    Column("acked", BigInteger, nullable=False),
    Column("filtered", BigInteger, nullable=False),
    Column("nacked", BigInteger, nullable=False),
)

generations = Table(
    "conduit_generations",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("source", String(256), primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("unit", Text, nullable=False),  # JSON: the data that it was assigned for
    Column("position", Text, nullable=False),  # JSON: the source's position when it was left; otherwise empty
)

consumers = Table(
    "conduit_consumers",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("consumer", String(256), primary_key=True),
    Column("kind", String(8), nullable=False),  # data | dlq
    Column("delivered", BigInteger, nullable=False),  # records
    Column("step", BigInteger, nullable=False),  # the last step it has handled
    Column("target", Text, nullable=False),  # JSON that the destination returned after its last delivery
)

steps = Table(
    "conduit_steps",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("state", String(8), nullable=False),  # planned | prepared | done | void
    Column("plan", Text, nullable=False),  # JSON
    Column("decision", Text, nullable=False),  # JSON, from prepared on
    Column("planned_ns", BigInteger, nullable=False),
    Column("done_ns", BigInteger, nullable=False),
)

deliveries = Table(
    # not conduit_deliveries: that is the destination's table of hashes, which may be in the same schema
    "conduit_step_deliveries",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("consumer", String(256), primary_key=True),
    Column("skip", BigInteger, primary_key=True),  # 0; a dead letter found at publishing has its own
    Column("hash", String(64), nullable=False),
    Column("state", String(8), nullable=False),  # open | split | once | done | void
    Column("handled", BigInteger, nullable=False),  # records handled, from the front; once done: records delivered
    Column("pending", Text, nullable=False),  # JSON: progress, and the children once it is split
    Column("staged", Text, nullable=False),  # JSON: a dead letter's own staged delivery; otherwise empty
)

offsets = Table(
    "conduit_offsets",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("consumer", String(256), primary_key=True),
    Column("source", String(256), primary_key=True),
    Column("namespace", SafeText(LONGEST), primary_key=True),  # "*": the source's overall offset
    Column("offset", BigInteger, nullable=False),  # the last offset up to which everything is handled
    Column("at_ns", BigInteger, nullable=False),
)

collections = Table(
    "conduit_collections",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("source", String(256), primary_key=True),
    Column("namespace", SafeText(LONGEST), primary_key=True),
    Column("mode", String(8), nullable=False),  # copy | complete | sync
    Column("offset", BigInteger, nullable=False),  # offset of its last handled record
    Column("at_ns", BigInteger, nullable=False),
)

logs = Table(
    "conduit_logs",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("source", String(256), primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
    Column("position", Text, nullable=False),  # JSON: the source's position up to which it is logged
)

log_parts = Table(
    "conduit_log_parts",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("source", String(256), primary_key=True),
    Column("first", BigInteger, primary_key=True),  # the first offset that its range covers
    Column("next", BigInteger, nullable=False),  # the first offset after it
    Column("segment", BigInteger, nullable=False),  # the first offset of its segment
    Column("name", String(256), nullable=False),  # the file's name in the segment's folder
    Column("entries", BigInteger, nullable=False),  # number of entries; fewer than next - first once compacted
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("nacked", BigInteger, nullable=False),  # entries that a source processor nacked
    Column("compacted", Integer, nullable=False),  # 1 once compacted, otherwise 0
    Column("position", Text, nullable=False),  # JSON: the source's position after its last entry
)

kept_values = Table(
    "conduit_kept_values",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("source", String(256), primary_key=True),
    Column("digest", String(64), primary_key=True),  # SHA-256 of the value: positions refer to it by this
    Column("used_ns", BigInteger, nullable=False),  # when it was put, or last seen to be referred to
    Column("value", LargeBinary, nullable=False),
)

dead_letters = Table(
    "conduit_dead_letters",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("source", String(256), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("position", SafeText(), nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("node", String(512), nullable=False),
    Column("code", SafeText(LONGEST_CODE), nullable=False),
    Column("message", SafeText(), nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("namespace", SafeText(LONGEST), nullable=False, server_default=""),
    Column("hash", String(64), nullable=False, server_default=""),  # of the delivery that took it to the queue
    Column("missed", Text, nullable=False, server_default=""),  # JSON: the destinations without it; empty: all
    Column("part", String(128), nullable=False, server_default=""),  # the archive's file with the record; or empty
    Column("line", BigInteger, nullable=False, server_default="0"),  # its row there, from 0
    Column("state", String(10), nullable=False, server_default="open"),  # open | replaying | replayed | discarded
    Column("attempt", Integer, nullable=False, server_default="1"),  # 1, plus one for each replay that failed
    Column("replay", BigInteger, nullable=False, server_default="0"),  # the replay that has it, or had it last
    Column("note", SafeText(), nullable=False, server_default=""),  # why it was discarded
    Column("closed_ns", BigInteger, nullable=False, server_default="0"),
    Index("conduit_dead_letters_by_reason", "pipeline", "state", "node", "code"),
    Index("conduit_dead_letters_by_offset", "pipeline", "source", "offset"),
    Index("conduit_dead_letters_by_part", "pipeline", "part"),
    Index("conduit_dead_letters_by_end", "pipeline", "closed_ns"),
)

dead_letter_parts = Table(
    "conduit_dead_letter_parts",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("part", String(128), primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("letters", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("indexed", BigInteger, nullable=False, server_default="0"),  # letters that have their row, from the first
)

owners = Table(
    "conduit_owners",
    metadata,
    Column("thing", SafeKey(768), primary_key=True),  # an absolute path, for example
    Column("pipeline", String(128), nullable=False),
    Column("consumer", String(256), nullable=False),
)

recoveries = Table(
    "conduit_recoveries",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("run", String(64), nullable=False),  # the run that began last, by its id
    Column("reported", String(64), nullable=False),  # the last run whose failure another process reported
    Column("failure", BigInteger, nullable=False),  # number of failures so far: it identifies a restart
    Column("attempt", Integer, nullable=False),  # consecutive restarts
    Column("restarts", Text, nullable=False),  # JSON: when the restarts that still count fell due, in ns
    Column("restart_at_ns", BigInteger, nullable=False),  # when the pending restart is due; 0: none is pending
    Column("cause", Text, nullable=False),  # JSON: the newest error; the first one is in conduit_pipelines
    Column("asked", String(16), nullable=False),  # start | stop | force | renew, until it is done
    Column("asked_ns", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False),  # of the pipeline's file, as read by the run that began last
)

launches = Table(
    "conduit_launches",
    metadata,
    Column("pipeline", String(128), primary_key=True),
    Column("kind", String(16), primary_key=True),  # start | restart | tick
    Column("run_key", Text, nullable=False),  # Dagster's key of the run that was launched last
    Column("launcher", Text, nullable=False),  # the code location that launches it
)

history = Table(
    "conduit_history",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("pipeline", String(128), nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("event", String(64), nullable=False),
    Column("detail", Text, nullable=False),  # JSON
    Index("conduit_history_by_pipeline", "pipeline", "id"),
    Index("conduit_history_by_event", "event", "pipeline", "id"),
)
