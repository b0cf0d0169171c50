"""Line 3 of the protocol: one Spark job that reads, processes and stages a step."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.plugin_results import add_miscounted, splits_of
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.spark_tasks import require_seen
from conduit_dagster.engine.stage import stage_task
from conduit_dagster.engine.stage_job import Ledger, LogRequest, SourceFailure, SplitOf, StageJob
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Part
from conduit_dagster.sdk.staging import discard_folder
from conduit_dagster.state.claim import claim_of
from conduit_dagster.state.steps import Plan, StagedDelivery

Tasks = list[list[SplitOf]]
_LEVELS = 3
"""Folder levels that a step makes: a consumer's staging, its execution, and the consumer's share."""
_PROJECT = 12
"""Characters of the project's id in the name of an execution: several projects may write to one table or folder, and
stage there.
"""
_SMALL_TASK = 1_000_000
"""Bytes that do not justify a task of their own."""


class Share(NamedTuple):
    """Files of one consumer, in order."""

    parts: list[Part]
    origins: list[Part]
    """Origins of the records, beside the parts, if the consumer keeps them."""


class Staged(NamedTuple):
    """An execution of a step: the report of each task, and the location of its parts."""

    tasks: Tasks
    ledgers: list[Ledger]
    staging: dict[str, str]
    failures: Sequence[SourceFailure] = ()
    """By source, its first failure in record order: the step must be cut right before each."""

    def share(self, consumer: str) -> Share:
        """Return the consumer's share."""
        return Share(
            [ledger.parts[consumer] for ledger in self.ledgers if consumer in ledger.parts],
            [ledger.origins[consumer] for ledger in self.ledgers if consumer in ledger.origins],
        )

    def records(self, consumer: str) -> list[Part]:
        """Return the consumer's share as whole records, if that was requested."""
        return [ledger.records[consumer] for ledger in self.ledgers if consumer in ledger.records]


class Stager:
    """Runner of the staging jobs of one pipeline's steps."""

    def __init__(self, context: StepContext) -> None:
        self._context, self._pipeline = context, context.pipeline
        base = storage.join(context.settings.staging, storage.safe_name(context.name))
        self._homes = {name: storage.join(one.staging(base)) for name, one in context.consumers.items()}
        """Staging folder of each consumer."""
        self._names = {name: storage.safe_name(name) for name in context.consumers}
        self._epoch = context.store.epoch
        claim = claim_of(context.store.engine)
        self._project = "" if claim is None else claim.project[:_PROJECT]
        self._entered = set[str]()
        self._miscounted = set[str]()
        """Sources whose splits were miscounted: this run reads their ranges as one split each."""

    def stage(
        self,
        plan: Plan,
        tasks: Tasks | None = None,
        as_records: Sequence[str] = (),
        log_requests: Mapping[str, LogRequest] | None = None,
        again: bool = False,
    ) -> Staged:
        """Read and stage a plan, or the splits in ``tasks``: those of an earlier execution give the same parts.

        ``as_records``: consumers whose share is also staged as whole records. ``log_requests``: sources that are read
        directly, with splits of their own in ``tasks``, and where to log their records. ``again``: the step is
        prepared, so its dead letters are already archived.

        A source that fails in the middle of its range is reported in :attr:`Staged.failures`. Raises ``FatalError`` if
        a source's range is not what was planned; ``TransientError`` (``spark.not_shared``) if a worker's files are not
        the driver's.
        """
        reached("before-stage", self._context.name)
        nodes = {span.source: self._pipeline.source_node(span.source) for span in plan.ranges}
        tasks = self._tasks(plan, nodes) if tasks is None else tasks
        staging = self._folders(plan.step)
        job = StageJob(
            plan.clock_ns,
            tasks,
            staging,
            plan.hashes,
            {span.source: span.generation for span in plan.ranges},
            list(as_records),
            plan.nacked,
            dict(log_requests or {}),
            {span.source: span.offset for span in plan.ranges},
            ("" if again else self._context.archive.folder, plan.step),
            plan.memory,
            self._context.processor_states.folder,
        )
        ledgers = self._run(job) if tasks else []
        for ledger in ledgers:
            if ledger.error is not None:
                raise ledger.error.as_error()
        failures = _first_failures(ledgers)
        if failures:
            codes = ((failure.source, failure.error.code) for failure in failures)
            if not again and add_miscounted(self._miscounted, codes):
                # nothing of this execution counts: its records have other numbers than their own
                self.discard(staging)
                return self.stage(plan, None, as_records, log_requests)
            return Staged(tasks, ledgers, staging, failures)
        for ledger in ledgers:
            require_seen(ledger.host, job.written_by(ledger))
        _verify(plan, nodes, again)
        reached("after-stage", self._context.name)
        return Staged(tasks, ledgers, staging)

    def _tasks(self, plan: Plan, nodes: Mapping[str, SourceNode]) -> Tasks:
        splits, slots = list[SplitOf](), self._context.step_slots()
        for span in plan.ranges:
            one, n = nodes[span.source], 1 if span.source in self._miscounted else slots
            found = splits_of(one.node, one.source, span.start, span.end, n)
            splits.extend(SplitOf(span.source, split) for split in found)
        return group(splits, slots)

    def relocated(self, tasks: Tasks) -> Tasks:
        """Return tasks of an earlier execution, with the current location of their data."""
        node = self._pipeline.source_node
        return [[SplitOf(s.source, node(s.source).source.relocate(s.split)) for s in task] for task in tasks]

    def _folders(self, step: int) -> dict[str, str]:
        names = (f"{self._epoch:08d}", f"{step:012d}", self._project, secrets.token_hex(8))
        execution = "-".join(filter(None, names))
        return {consumer: f"{home}/{execution}/{self._names[consumer]}" for consumer, home in self._homes.items()}

    def _run(self, job: StageJob) -> list[Ledger]:
        task = partial(stage_task, self._context.program, msgspec.msgpack.encode(job))
        rows = self._context.jobs.each(len(job.tasks), task, self._pipeline.queries)
        return sorted((msgspec.msgpack.decode(row, type=Ledger) for row in rows), key=lambda ledger: ledger.task)

    def sync(self, staging: dict[str, str], consumers: Sequence[str]) -> None:
        """Make the staged files' names durable; their bytes have been durable since the tasks ended."""
        for consumer in consumers:
            home = self._homes[consumer]
            if home not in self._entered:
                # a prepared step needs its staging, and the folders above it may be new
                storage.sync_entry(home)
                self._entered.add(home)
        for consumer in consumers:
            storage.sync_levels(staging[consumer], _LEVELS)

    def discard(self, staging: dict[str, str]) -> None:
        """Remove an execution's folders."""
        for url in {url.rsplit("/", 1)[0] for url in staging.values()}:
            discard_folder(url)

    def clean(self, kept: Sequence[StagedDelivery]) -> None:
        """Remove staging that earlier runs left behind and no prepared step needs.

        Only folders of lower epochs: a frozen owner that resumes never removes those of a newer one; and of this
        project: others may have the same folder of a destination, with a pipeline of the same id.
        """
        needed = {delivery.staging.rsplit("/", 1)[0] for delivery in kept}
        for home in set(self._homes.values()):
            for name in storage.folders(home):
                url = storage.join(home, name)
                if url not in needed and self._is_old(name):
                    discard_folder(url)

    def _is_old(self, execution: str) -> bool:
        """Return whether an execution is one of this project, and of an earlier owner."""
        epoch, *names = execution.split("-")
        # those of earlier versions, and of a store without a claim, do not name their project
        is_own = len(names) < 3 or self._project in ("", names[1])
        return is_own and epoch.isdecimal() and int(epoch) < self._epoch


def _verify(plan: Plan, nodes: Mapping[str, SourceNode], is_prepared: bool) -> None:
    # verify the identity of the data again at the end: a missing range is never skipped here
    for span in plan.ranges:
        node = nodes[span.source]
        if is_prepared:
            blamed(node.node, node.source.verify, span.start, span.end)
        else:
            node.verify(span.start, span.end)


def _first_failures(ledgers: Sequence[Ledger]) -> list[SourceFailure]:
    found: dict[str, SourceFailure] = {}
    for failure in (ledger.failed for ledger in ledgers if ledger.failed is not None):
        known = found.get(failure.source)
        if known is None or failure.ordinal < known.ordinal:
            found[failure.source] = failure
    return list(found.values())


def group(splits: Sequence[SplitOf], slots: int) -> Tasks:
    """Group consecutive splits into about ``slots`` tasks of similar weight; little data makes one task."""
    if slots == 1:
        return [list(splits)] if splits else []
    total = sum(split.split.bytes for split in splits)
    share = max(_SMALL_TASK, -(-total // slots))
    tasks: Tasks = []
    weight = share
    for split in splits:
        if weight + split.split.bytes / 2 >= share:
            tasks.append([])
            weight = 0
        tasks[-1].append(split)
        weight += split.split.bytes
    return tasks


def as_rows(tasks: Tasks) -> list[list[dict[str, object]]]:
    """Return tasks in the format of the state store."""
    return msgspec.to_builtins(tasks)


def from_rows(rows: object) -> Tasks:
    """Return the tasks that :func:`as_rows` encoded."""
    return msgspec.convert(rows, Tasks)
