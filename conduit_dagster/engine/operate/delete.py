"""``pipelines delete``: removes all that is kept of a stopped pipeline, here and on its sources' servers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from conduit_dagster.builtin_plugins import SOURCES
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, close_sources
from conduit_dagster.engine.log_source import JoinSource
from conduit_dagster.engine.operate.open_delivery import prepared_step
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.engine.operate.pipeline_lock import leased, owner_first
from conduit_dagster.engine.operate.source_positions import logs_of
from conduit_dagster.engine.operate.subject import Subject
from conduit_dagster.engine.pipeline_folders import FolderListing, claim_folders, kept_folders
from conduit_dagster.engine.registering import attach_kept, attach_logs, reads_same, unit_of
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import ConduitError, TransientError, from_os_error
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Leftover, Position, Source
from conduit_dagster.secret_values import masked
from conduit_dagster.state.connector_registrations import data_of
from conduit_dagster.state.database import reading
from conduit_dagster.state.dead_letters import open_counts
from conduit_dagster.state.deletion import delete_state, record_deletion
from conduit_dagster.state.log_store import LogState
from conduit_dagster.state.pipeline_state import PipelineState, SourceState
from conduit_dagster.state.readers import every_reader_of
from conduit_dagster.state.store import PipelineStore

Facts = dict[str, Any]


def delete(subject: Subject, by: str, force: bool = False, dry_run: bool = False) -> Facts:
    """Delete a stopped pipeline: its positions, log, dead letters and staged files, and its sources' leftovers.

    Its history stays, its generations and steps keep their numbers: a pipeline of this id that runs later delivers
    under hashes that no destination knows. May be killed at any point, and repeated.

    Raises ``FatalError`` (``pipeline.never_ran``; ``validation.failed`` if its file has errors;
    ``pipeline.has_readers`` if others read its log; ``pipeline.would_lose``, without ``force``, if something that is
    not delivered would be lost, or something would stay on a source's server), ``TransientError`` (``lease.held`` if it
    runs; ``file.no_permission`` and the like if files can't be removed), and errors of its sources.
    """
    with _locked(subject) as held:
        with reading(held.database) as connection:
            _require_no_readers(connection, held.id)
        found = _Cleanup.of(held, force, acks=not dry_run)
        left = sorted([*found.left, *_left_behind(held)])
        unread = [*_undelivered(held), *(one.loses for one in found.leftovers if one.loses)]
        letters = _open_letters(held)
        if (unread or letters or left) and not force:
            raise _would_lose(held, unread, letters, left)
        facts: Facts = {
            "pipeline": held.id,
            "sources": sorted(held.state.sources),
            "removed": [one.name for one in found.leftovers],
            "lost": [*unread, *letters],
            "left": left,
            "file": subject.bound.file if subject.bound else None,
            "dry_run": dry_run,
        }
        if not dry_run:
            _delete(held, found, by, facts)
        return facts


@dataclass(frozen=True)
class _Held:
    """A stopped pipeline whose lease is held; its file may be gone."""

    subject: Subject
    compiled: CompiledPipeline | None
    database: sa.Engine
    store: PipelineStore
    state: PipelineState
    logs: Mapping[str, LogState]
    """The end of each source's log, by source."""

    @property
    def id(self) -> str:
        return self.subject.id

    @property
    def options(self) -> RunOptions:
        return self.subject.options

    @property
    def sources(self) -> Iterator[tuple[SourceNode, SourceState]]:
        """Sources of its file that the store knows, and that still read the same data."""
        compiled = self.compiled
        if compiled is None:
            return
        for node in compiled.sources:
            one = self.state.sources.get(node.id)
            if one is not None and unit_of(compiled, node).is_same_as(one.unit):
                yield node, one

    def read_up_to(self, source: str) -> Position:
        """Return the source's own position behind all that was read of it."""
        log = self.logs.get(source)
        return self.state.sources[source].position if log is None else log.position

    def acks(self, source: str) -> Iterator[tuple[Source, Position, int]]:
        """Yield what a run that begins would ack to the source, directly or through its log, with the generation."""
        compiled = self.compiled
        for node in () if compiled is None else compiled.inputs:
            if compiled is None or not reads_same(compiled, node, self.state):
                continue
            one = self.state.sources[node.id]
            if isinstance(node.source, JoinSource):
                yield node.source.members[source], one.position[source], one.generation
            elif node.id == source:
                yield node.source, one.position, one.generation


@contextmanager
def _locked(subject: Subject) -> Generator[_Held]:
    if subject.has_file:
        subject.sound()
    database, options = subject.known(), subject.options
    compiled = None if subject.bound is None else subject.bound.compiled
    with leased(subject.id, database, options) as store:
        try:
            claim_folders(database, subject.id, options)
            if compiled is not None:
                attach_kept(compiled, store)
                attach_logs(compiled, store, options.log_url)
            logs = {log.source: log.state() for log in logs_of(database, subject.id, options.log_url)}
            with owner_first(store):
                yield _Held(subject, compiled, database, store, store.load(), logs)
        finally:
            if compiled is not None:
                close_sources(compiled)


def _require_no_readers(connection: sa.Connection, pipeline: str) -> None:
    """Raise ``FatalError`` if other pipelines read its log, or did: their offsets mean nothing in one that begins anew.

    A dropped one counts as well, because it resumes at its offset when it returns.
    """
    found = every_reader_of(connection, pipeline)
    if found:
        names, first = ", ".join(reader.name for reader in found), found[0].pipeline
        message = f"the log of pipeline {pipeline} is read by {names}"
        raise refused("pipeline.has_readers", message, f"delete that first: conduit-dagster pipelines delete {first}")


def _undelivered(held: _Held) -> Iterator[str]:
    """Yield, in words, what was read and is kept here alone, without being delivered."""
    if (open_ := prepared_step(held.state)) is not None:
        yield f"step {open_[0].plan.step}, which is prepared and not done"
    for source, log in held.logs.items():
        waits = log.next_offset - _handled(held.state, source)
        if waits > 0:
            yield f"{waits:,} logged records of {source} that are not delivered"


def _open_letters(held: _Held) -> list[str]:
    letters = open_counts(held.database).get(held.id, 0)
    return [f"{letters:,} open dead {'letter' if letters == 1 else 'letters'}"] if letters else []


def _handled(state: PipelineState, source: str) -> int:
    """Return the offset up to which a log is delivered; that of the join for a member of one."""
    for one in state.sources.values():
        if one.unit.get("plugin") == "join" and source in one.position:
            return int(one.position[source])
    known = state.sources.get(source)
    return known.position if known is not None and isinstance(known.position, int) else 0


@dataclass
class _Cleanup:
    """What the sources keep on their servers."""

    sources: list[tuple[SourceNode, Position]]
    """Sources to clean up, each with its own position."""
    leftovers: list[Leftover]
    left: list[str]
    """What stays because its server can't be asked, in words."""

    @classmethod
    def of(cls, held: _Held, force: bool, acks: bool) -> _Cleanup:
        """Ask the sources. ``force``: go on without one whose server does not answer. ``acks``: repeat the last acks,
        as a run does when it begins: if they were lost, delivered records would count as unread."""
        made = cls([], [], [])
        for node, one in held.sources:
            name, position = node.node, held.read_up_to(node.id)
            try:
                for source, upto, generation in held.acks(node.id) if acks else ():
                    blamed(name, source.ack, upto, generation)
                made.leftovers += blamed(name, node.source.leftovers, position)
                made.sources.append((node, position))
            except ConduitError as error:
                if not force:
                    raise
                text = type(node.source).left_by(data_of(one.unit), position) or "what it keeps there"
                made.left.append(f"{text} (source {node.id}: {error.message})")
        return made


def _left_behind(held: _Held) -> Iterator[str]:
    """Yield, in words, what sources left on servers that the pipeline's file no longer names."""
    known = {node.id for node, _ in held.sources}
    for name, one in held.state.sources.items():
        kind = None if name in known else SOURCES.find(str(one.unit.get("plugin")), {})
        if kind is not None and (text := kind.left_by(data_of(one.unit), held.read_up_to(name))):
            yield masked(f"{text} (source {name})")


def _would_lose(held: _Held, unread: list[str], letters: list[str], left: list[str]) -> Exception:
    lost = [*unread, *letters]
    what = [f"would lose {'; '.join(lost)}"] if lost else []
    if left:
        what.append(f"would leave on a server, as its file does not name it any more: {'; '.join(left)}")
    restored = "" if held.subject.has_file or not lost else "put its file back"
    finish = "run it once first (conduit-dagster run --once)" if unread else ""
    settle = f"replay or discard its dead letters (conduit-dagster dlq list {held.id})" if letters else ""
    back = "name its last file with --file PATH" if left else ""
    fix = "; ".join(filter(None, (restored, finish, settle, back, "or repeat it with --force")))
    return refused("pipeline.would_lose", f"deleting {held.id} {', and '.join(what)}", fix)


def _delete(held: _Held, found: _Cleanup, by: str, facts: Facts) -> None:
    # servers first: as long as the state is there, the command can be repeated and finds them again
    # in each transaction, as another pipeline may begin to read the log meanwhile: for that it locks this one's row
    check = partial(_require_no_readers, pipeline=held.id)
    for node, position in found.sources:
        held.store.transactions.run(check)  # if the command was frozen until now, another run may use them
        blamed(node.node, node.source.remove_leftovers, position)
    reached("after-servers", held.id)
    told = {key: facts[key] for key in ("sources", "removed", "lost", "left")}
    # before the last check of the lease: a run that begins after it makes files of its own
    files = {folder: FolderListing(folder) for folder in kept_folders(held.id, held.options)}
    # nothing goes any more where an earlier command was killed after this
    delete_state(held.store.transactions, held.id, check, **({"by": by, **told} if any(told.values()) else {}))
    reached("after-state", held.id)
    _remove_files(held, files)
    held.store.transactions.run(partial(record_deletion, pipeline=held.id, by=by, **told))


def _remove_files(held: _Held, files: Mapping[str, FolderListing]) -> None:
    """Remove the log, the archive and the staging folder. Raises ``TransientError`` if something stays."""
    held.store.transactions.run(lambda connection: None)  # ``LeaseLost`` if another process has taken over
    failed: list[tuple[str, OSError]] = []
    for folder, listed in files.items():
        try:
            listed.remove()
        except OSError as error:
            failed.append((folder, error))
    for folder, error in failed:
        found = from_os_error(error, f"the state of pipeline {held.id} is deleted, but not all of its files")
        fix = f"{found.fix or 'remove it'}, and repeat the command"
        raise TransientError(found.message, code=found.code, place=folder, fix=fix) from error
