"""What one Spark task does: reads its splits, runs the processors block by block, stages every consumer's share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from conduit_dagster.connectors.base import Block, Keys, ReadOptions, Replayed, Split, Writer, WriterTask
from conduit_dagster.connectors.staged import RecordWriter
from conduit_dagster.engine.blame import blamed
from conduit_dagster.engine.collector import quiet_collector
from conduit_dagster.engine.compiled import DEAD_LETTERS, CompiledPipeline, compile_encoded, is_edit
from conduit_dagster.engine.dead_letters.archive import ArchiveFile, Letter
from conduit_dagster.engine.dead_letters.kept import keep
from conduit_dagster.engine.dead_letters.layout import Origin, clean, dead_letter
from conduit_dagster.engine.dead_letters.missed import PIECES, encode_missed
from conduit_dagster.engine.dead_letters.originals import Originals
from conduit_dagster.engine.dead_letters.queue_nodes import processed
from conduit_dagster.engine.dead_letters.way import Branch, way_of
from conduit_dagster.engine.delivery_errors import queue_refuses
from conduit_dagster.engine.inlets import Inlet
from conduit_dagster.engine.ledger import Ledger, NackRow, task_error
from conduit_dagster.engine.nack_rows import NackRows
from conduit_dagster.engine.namespaces import Tracker
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.reading import read_blocks
from conduit_dagster.engine.tee import Tee
from conduit_dagster.engine.teed import TeeTo
from conduit_dagster.learn import learn
from conduit_dagster.record import Nack, Record, copy
from conduit_dagster.state.steps import SourceCount

_MESSAGE = 2_000


class SplitOf(msgspec.Struct, frozen=True):
    """A split and the source it belongs to."""

    source: str
    split: Split


class StageJob(msgspec.Struct, frozen=True):
    """One execution of one step: everything its tasks need besides the program."""

    clock_ns: int
    tasks: list[list[SplitOf]]
    staging: dict[str, str]
    """Consumer to the folder URL for this execution."""
    hashes: dict[str, str] = {}
    generations: dict[str, int] = {}
    as_records: list[str] = []
    """Consumers whose share is staged as whole records with their origins, whatever their own writer would stage."""
    nacked: dict[str, list[int]] = {}
    """By source, offsets in the log of records that have made their nack (``Plan.nacked``)."""
    tees: dict[str, TeeTo] = {}
    """Sources that are read themselves, and logged on the way; by their id."""
    offsets: dict[str, int] = {}
    """The offset of each source's first record."""
    archive: tuple[str, int] = ("", 0)
    """The folder that keeps what is nacked, and the step's number; nothing is kept without a folder."""

    def encode(self) -> bytes:
        """As it travels."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> StageJob:
        """The job behind :meth:`encode`."""
        return msgspec.msgpack.decode(data, type=StageJob)


LEDGER_SCHEMA = "ledger binary"


def run_tasks(program: bytes, job: bytes, batches: Iterator[Any]) -> Iterator[Any]:
    """The function of the stage's ``mapInArrow``: one row with a task's number in, one row with its ledger out."""
    decoded = StageJob.decode(job)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            with quiet_collector():
                ledger = run_task(program, decoded, int(number))
            yield pa.RecordBatch.from_pydict({"ledger": pa.array([ledger.encode()], pa.binary())})


def run_task(program: bytes, job: StageJob, number: int) -> Ledger:
    """One task. Errors of any kind come back in the ledger; nothing of such a task counts."""
    try:
        pipeline = compile_encoded(program)
        pipeline.clock.now_ns = job.clock_ns
        pipeline.turn.hashes, pipeline.turn.generations = job.hashes, job.generations
        return _Task(pipeline, job, number).run()
    except Exception as error:  # noqa: BLE001  # Spark would keep only an exception's text; the ledger keeps its class
        return Ledger(number, error=task_error(error, "a task failed"))


class _Task:
    def __init__(self, pipeline: CompiledPipeline, job: StageJob, number: int) -> None:
        self._pipeline, self._job, self._number = pipeline, job, number
        self._token = secrets.token_hex(8)
        self._writers = {name: self._writer(name) for name in pipeline.consumers()}
        self._ledger = Ledger(number, {}, [], None, {}, {}, {}, {}, [])
        self._tees: list[Tee] = []
        folder, step = job.archive
        self._archive = ArchiveFile(folder, step, number) if folder else None

    def _writer(self, consumer: str) -> Writer:
        name, turn = self._job.hashes.get(consumer, ""), self._pipeline.turn
        task = WriterTask(self._job.staging[consumer], self._number, self._token, name, turn)
        if consumer in self._job.as_records:
            return RecordWriter(task)
        return self._pipeline.consumers()[consumer].writer(task)

    def run(self) -> Ledger:
        try:
            for split in self._job.tasks[self._number]:
                self._run_split(split)
            for consumer, writer in self._writers.items():
                if part := blamed(self._node(consumer), writer.finish):
                    self._ledger.parts[consumer] = part
            self._ledger.teed.extend(tee.finish() for tee in self._tees)
            self._ledger.letters = self._archive.finish() if self._archive else None
        except BaseException:
            for writer in (*self._writers.values(), *self._tees, *([self._archive] if self._archive else [])):
                writer.abort()
            raise
        return self._ledger

    def _node(self, name: str) -> str:
        return f"{self._pipeline.program.pipeline}:{name}"

    def _run_split(self, split: SplitOf) -> None:
        inlet = self._pipeline.inlet(split.source)
        begin, blocks = self._opened(inlet, split.split)
        originals = Originals(lambda: self._read(inlet, split.split, ReadOptions()), split.split.ordinal)
        run = _SplitRun(
            self._pipeline, self._job, inlet, split.split.ordinal, begin, self._writers, self._ledger, self._archive,
            originals,
        )  # fmt: skip
        for block in blocks:
            run.block(block)

    def _opened(self, inlet: Inlet, split: Split) -> tuple[Any, Iterator[Block]]:
        """The boundary before the split's first record, and its blocks."""
        to = self._job.tees.get(inlet.id)
        if to is not None:
            return to.first + split.ordinal, self._tee(inlet, to, split.ordinal).blocks(split)
        options = ReadOptions(Keys.ALL if self._job.as_records else self._pipeline.reads_keys)
        return split.start, self._read(inlet, split, options)

    def _read(self, inlet: Inlet, split: Split, options: ReadOptions) -> Iterator[Block]:
        return read_blocks(self._pipeline, inlet.id, inlet.source, split, options)

    def _tee(self, inlet: Inlet, to: TeeTo, ordinal: int) -> Tee:
        """One file for the consecutive splits of a source."""
        if not self._tees or self._tees[-1].source != inlet.id:
            self._tees.append(Tee(self._pipeline, inlet, to, ordinal))
        return self._tees[-1]


class _SplitRun:
    """Runs the blocks of one split, and is told of every record that does not reach every destination."""

    def __init__(
        self,
        pipeline: CompiledPipeline,
        job: StageJob,
        inlet: Inlet,
        ordinal: int,
        begin: Any,
        writers: dict[str, Writer],
        ledger: Ledger,
        archive: ArchiveFile | None,
        originals: Originals,
    ) -> None:
        self._nacked_before = frozenset(job.nacked.get(inlet.id, ()))
        self._pipeline, self._job, self._inlet, self._writers, self._ledger = pipeline, job, inlet, writers, ledger
        self._archive, self._originals = archive, originals
        self._ordinal = ordinal
        self._before: Callable[[], Any] = lambda: begin
        self._block = Block([], lambda i: None)
        self._nacks: dict[int, tuple[int, str, Nack, Record]] = {}
        self._missed: dict[int, set[int]] = {}
        self._unsent: set[int] = set()
        self._pieces: set[int] = set()
        self._rank = 0
        self._count = ledger.sources.setdefault(inlet.id, SourceCount())
        self._filtered = ledger.filtered
        self._seen = Tracker(ledger.namespaces.setdefault(inlet.id, {}))
        program = pipeline.program
        # a dead letter that fails again is none that the pipeline has not borne before
        self._cuts = program.window_size > 0 and not inlet.is_replay
        self._rows = NackRows(program.window_size if self._cuts else 0, program.window_threshold)
        outlets = enumerate(pipeline.outlets, 1)
        self._branches = _ordered(Branch(i, o, o.nodes) for i, o in outlets if inlet.only in ("", o.id))

    def block(self, block: Block) -> None:
        """Takes one block through the whole pipeline."""
        records = block.records
        self._block, self._nacks, self._missed, self._unsent, self._rank = block, {}, {}, set(), 0
        self._pieces.clear()
        total, origins = len(records), range(len(records))
        if block.nacks:
            records, origins = self._without_nacked(block)
        if block.replayed is None:
            records, origins = self._through(self._inlet.nodes, records, origins)
            self._seen.see(records, self._ordinal, origins)
            records, origins = self._through(self._pipeline.nodes, records, origins)
        else:
            records, origins = self._again(block.replayed, records, origins)
        nacked = len(self._nacks)
        self._note_pieces(origins)
        gone = total - nacked - _distinct(origins, self._nacks)
        self._fan_out(records, origins)
        self._count.read += total
        self._count.filtered += gone
        self._count.nacked += len(self._nacks)
        if self._nacks:
            self._record_nacks()
        self._ordinal += total
        if self._cuts:
            self._before = partial(block.boundary, total - 1)

    def _through(
        self, nodes: Sequence[Step], records: list[Record], origins: Sequence[int]
    ) -> tuple[list[Record], Sequence[int]]:
        for node in nodes:
            records, origins = node.run(records, origins, self)
        return records, origins

    def _again(
        self, replayed: Replayed, records: list[Record], origins: Sequence[int]
    ) -> tuple[list[Record], Sequence[int]]:
        """Dead letters take the way that they still have before them; what fails on it stays one."""
        way = way_of(self._pipeline, self._inlet, replayed)
        if isinstance(way, Nack):
            for record, origin in zip(records, origins, strict=True):
                self.nacked(replayed.node, origin, way, record)
            self._unsent.update(origins)
            return [], []
        self._branches = _ordered(way.branches)
        return self._through(way.nodes, records, origins)

    def _without_nacked(self, block: Block) -> tuple[list[Record], Sequence[int]]:
        """Records that were nacked before they were logged are nacked here, in their place, and go no further."""
        for origin, (node, nack) in block.nacks.items():
            self.nacked(node, origin, nack, block.records[origin])
        on = [origin for origin in range(len(block.records)) if origin not in block.nacks]
        return [block.records[origin] for origin in on], on

    def _fan_out(self, records: list[Record], origins: Sequence[int]) -> None:
        last = self._branches[-1].rank
        for branch in self._branches:
            if records:
                self._rank = branch.rank
                own = branch.outlet.needs_own_records and branch.rank != last
                self._branch(branch, [copy(r) for r in records] if own else records, origins)

    def _branch(self, branch: Branch, records: list[Record], origins: Sequence[int]) -> None:
        records, origins = self._through(branch.nodes, records, origins)
        self._note_pieces(origins)
        outlet = branch.outlet
        if not records:
            return
        if outlet.destination.changes_records:
            for record in records:
                record.metadata = dict(record.metadata)
        if outlet.destination.prints and self._pipeline.redaction:
            records = list(map(self._pipeline.redaction.record, records))
        writer = self._writers[outlet.id]
        writer.place(self._inlet.id, self._ordinal, origins)
        refused = dict(blamed(outlet.node, writer.write, records))
        for place, nack in refused.items():
            self.nacked(outlet.node, origins[place], nack, records[place])
        if refused:
            self._note_pieces([origin for place, origin in enumerate(origins) if place not in refused])

    def filtered(self, node: str, origin: int) -> None:
        """Counts a drop."""
        del origin
        self._filtered[node] = self._filtered.get(node, 0) + 1

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        """One source record makes at most one nack, that of the first node in file order (DELIVERY.md)."""
        if self._nacked_before and self._block.boundary(origin) - 1 in self._nacked_before:
            return
        missed = self._missed.setdefault(origin, set())
        if self._rank in missed:
            self._pieces.add(origin)  # two copies of it fail in one place
        missed.add(self._rank)
        known = self._nacks.get(origin)
        if known is None or self._rank < known[0]:
            if self._block.complete is not None:
                self._block.complete(origin, record)
            self._nacks[origin] = (self._rank, node, nack, copy(record))

    def _record_nacks(self) -> None:
        places = sorted(self._nacks)
        redacts = bool(self._pipeline.redaction)
        # also where a step is staged again and nothing is archived: what is masked must be the same
        originals = self._again_of(places) if self._archive is not None or redacts else []
        if redacts:
            self._redact(places, originals)
        for origin in places:
            rank, node, nack, record = self._nacks[origin]
            reason = f"{node} {nack.code}"
            self._ledger.nacked[reason] = self._ledger.nacked.get(reason, 0) + 1
            if self._rows.wants(self._ordinal + origin):
                self._ledger.nacks.append(self._row(origin, rank, node, nack, record))
        if self._archive is not None:
            for letter in self._kept(places, originals):
                self._archive.add(letter)
        if self._block.replayed is None:  # else the queue has it already
            self._stage_letters(places)

    def _stage_letters(self, places: Sequence[int]) -> None:
        writer, node = self._writers[DEAD_LETTERS], f"{self._pipeline.program.pipeline}:{DEAD_LETTERS}"
        letters, origins = processed(self._pipeline, [self._dead_letter(place) for place in places], places)
        writer.place(self._inlet.id, self._ordinal, origins)
        if refused := blamed(node, writer.write, letters):
            failed = self._nacks[origins[refused[0].place]][3]
            raise queue_refuses(self._pipeline.redaction.nack(refused[0].nack, failed), node)

    def _dead_letter(self, place: int) -> Record:
        _, node, nack, record = self._nacks[place]
        if self._pipeline.dead_letters.prints:
            record = self._pipeline.redaction.record(record)
        pipeline, offset = self._pipeline.program.pipeline, self._job.offsets.get(self._inlet.id, 0)
        name = self._job.hashes.get(DEAD_LETTERS, "")
        source = Origin(pipeline, self._inlet.origin, offset + self._ordinal + place, name)
        return dead_letter(source, node, nack, record, self._pipeline.clock.now_ns)

    def _note_pieces(self, origins: Sequence[int]) -> None:
        """Records of which one copy has failed and another goes on: they can't be sent again as a whole."""
        if self._nacks and not isinstance(origins, range):
            self._pieces.update(
                origin for origin in self._nacks.keys() & set(origins) if self._rank in self._missed[origin]
            )

    def _again_of(self, places: Sequence[int]) -> list[Record]:
        if self._block.again is not None:
            return self._block.again(places)
        return self._originals.of([self._ordinal + place for place in places])

    def _redact(self, places: Sequence[int], originals: Sequence[Record]) -> None:
        for number, place in enumerate(places):
            rank, node, nack, record = self._nacks[place]
            nack = self._pipeline.redaction.nack(nack, record, *originals[number : number + 1])
            self._nacks[place] = rank, node, nack, record

    def _kept(self, places: Sequence[int], originals: Sequence[Record]) -> Iterator[Letter]:
        """What the archive keeps of them: each record as it failed, and as its source gave it."""
        replayed = self._block.replayed
        for place, original in zip(places, originals, strict=True):
            _, node, nack, record = self._nacks[place]
            failed, first, key = keep(record), keep(original), (-1, -1)
            if replayed is not None:
                key, first = replayed.keys[place], replayed.originals[place]
                if place in self._unsent or is_edit(node):
                    # it came to no node of the pipeline: it stands where it stood
                    node, failed = replayed.node, replayed.failed[place]
            yield Letter(
                self._inlet.id, self._ordinal + place, clean(str(record.position)), clean(record.collection), node,
                nack.code, _short(nack), self._missed_by(place), *key, failed, first,
            )  # fmt: skip

    def _missed_by(self, place: int) -> str:
        """The destinations that have no copy: all where it was nacked before the fan-out."""
        ranks, replayed = self._missed[place], self._block.replayed
        pieces = [PIECES] if place in self._pieces else []
        if 0 in ranks:
            return encode_missed([*pieces, *(replayed.missed if replayed else filter(None, [self._inlet.only]))])
        return encode_missed([*pieces, *(self._pipeline.outlets[rank - 1].id for rank in sorted(ranks))])

    def _row(self, origin: int, rank: int, node: str, nack: Nack, record: Record) -> NackRow:
        before = self._boundary_before(origin) if self._cuts else None
        by_destination = rank > 0 and node == self._outlet_node(rank)
        position, message = clean(str(record.position)), _short(nack)
        return NackRow(
            self._inlet.id, self._ordinal + origin, position, node, nack.code, message, by_destination, before
        )

    def _outlet_node(self, rank: int) -> str:
        return self._pipeline.outlets[rank - 1].node

    def _boundary_before(self, origin: int) -> Any:
        return self._block.boundary(origin - 1) if origin else self._before()


def _ordered(branches: Iterable[Branch]) -> list[Branch]:
    """Branches that change records come last, so that the last of them may have the originals."""
    return sorted(branches, key=lambda branch: branch.outlet.needs_own_records)


def _short(nack: Nack) -> str:
    return clean(nack.message[:_MESSAGE])


def _distinct(origins: Sequence[int], nacked: dict[int, Any]) -> int:
    """How many source records go on and are not nacked as well (one may be split into several)."""
    if isinstance(origins, range) and not nacked:
        return len(origins)
    return len(set(origins) - nacked.keys())


learn(StageJob)
