"""Nacked records of a split, and their originals: written to the archive and to the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline, is_edit
from conduit_dagster.engine.dead_letters.archive import ArchivedLetter, ArchiveFile, keep, kept
from conduit_dagster.engine.dead_letters.letter_layout import (
    PIECES,
    NackOrigin,
    clean,
    dead_letter,
    encode_missed,
    said,
)
from conduit_dagster.engine.delivery_errors import queue_refuses
from conduit_dagster.engine.reading import SHOWN
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.stage_job import StageJob
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import Nack, Record, copy
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.sdk import Block, Writer
from conduit_dagster.secret_values import hide, hides_any
from conduit_dagster.state.steps import EDIT_FAILED


class Nacked(NamedTuple):
    """A record that was nacked."""

    rank: int
    """Rank of the destination on whose branch it was nacked: its position in the file, from 1; 0 before the fan-out."""
    node: str
    nack: Nack
    record: Record
    """The record in its state when it was nacked."""
    stands: bool
    """Whether it is a replayed dead letter that had no route and so reached no node."""


class BlockNacks:
    """First nack of each record in file order, and every destination that has no copy of the record."""

    def __init__(self, block: Block) -> None:
        self._complete = block.complete
        self._of: dict[int, Nacked] = {}
        self._missed: dict[int, set[int]] = {}
        self._pieces: set[int] = set()
        self._duplicates: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, place: int) -> bool:
        return place in self._of

    def __iter__(self) -> Iterator[tuple[int, Nacked]]:
        """Iterate over places and nacks in record order."""
        return ((place, self._of[place]) for place in self.places())

    def places(self) -> list[int]:
        """Return the places of the nacked records, in order."""
        return sorted(self._of)

    def add(self, place: int, rank: int, node: str, nack: Nack, record: Record, stands: bool = False) -> None:
        """Add a nack; if two copies of a record fail, that of the first node in file order counts."""
        missed = self._missed.setdefault(place, set())
        if rank in missed:
            self._pieces.add(place)  # two copies of it failed on one branch
        missed.add(rank)
        known = self._of.get(place)
        if known is None or rank < known.rank:
            if self._complete is not None:
                self._complete(place, record)
            # also if the step is staged again: the text must be the same
            nack = Nack(nack.code, hide(nack.message)) if hides_any() else nack
            self._of[place] = Nacked(rank, node, nack, copy(record), stands)

    def went_on(self, rank: int, places: Sequence[int]) -> None:
        """Note that copies of these records passed this rank: one that also failed there can't be replayed whole.

        ``places``: ascending.
        """
        if self._of and not isinstance(places, range):
            self._pieces.update(place for place in self.among(places) if rank in self._missed[place])

    def dropped(self, rank: int, place: int) -> None:
        """Note that a stateful processor dropped a copy of the record, before any copy failed there.

        A replay leaves that processor out, and would send what it had dropped.
        """
        if rank not in self._missed.get(place, ()):
            self._duplicates.add((rank, place))

    def among(self, places: Sequence[int]) -> list[int]:
        """Return those of the places, which ascend, whose records are nacked."""
        return [place for place in self._of if _is_among(place, places)]

    def missed(self, place: int) -> Sequence[int]:
        """Return the ranks of the destinations without a copy of the record; 0 stands for all of them."""
        return sorted(self._missed[place])

    def in_pieces(self, place: int) -> bool:
        """Return whether a piece of the record failed while another one passed, failed too, or was a duplicate."""
        return place in self._pieces or any((rank, place) in self._duplicates for rank in {0, *self._missed[place]})

    def say(self, place: int, nack: Nack) -> None:
        """Replace a record's nack, for example to change its text."""
        self._of[place] = self._of[place]._replace(nack=nack)


def _is_among(place: int, places: Sequence[int]) -> bool:
    found = bisect_left(places, place)
    return found < len(places) and places[found] == place


def processed(
    pipeline: CompiledPipeline, letters: list[Record], origins: Sequence[int]
) -> tuple[list[Record], Sequence[int]]:
    """Return the letters after the queue's processors. A filtered letter goes to the archive only.

    Raises ``FatalError`` (``dead_letters.refused``) for a letter that such a processor nacks: it has no further queue.
    """
    for node in pipeline.dead_letters.nodes:
        letters, origins = node.run(letters, origins, _NoQueue())
    return letters, origins


class _NoQueue:
    def filtered(self, node: str, origin: int) -> None:
        del node, origin

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        del origin, record
        raise queue_refuses(nack, node)


@dataclass(frozen=True)
class SplitContext:
    """A split of a step, in its task."""

    pipeline: CompiledPipeline
    job: StageJob
    source_node: SourceNode
    ordinal: int
    """Index of its first record in the step's range of its source."""
    begin: Any
    """The boundary before that record."""


class Originals:
    """Original records from the source, for the few that were nacked after processors had changed them.

    Reads the range a second time, only on request and only as far as needed: nothing without nacks.
    """

    def __init__(self, again: Callable[[], Iterator[Block]], first: int) -> None:
        """``again`` reads the range from its beginning, whose first record has the ordinal ``first``."""
        self._again = again
        self._records: Iterator[Record] | None = None
        self._next = first

    def of(self, ordinals: Sequence[int]) -> list[Record]:
        """Return the records with these ordinals, in order; a call can't go back before the previous one."""
        if self._records is None:
            self._records = chain.from_iterable(block.records for block in self._again())
        found: list[Record] = []
        for ordinal in ordinals:
            record = None
            while self._next <= ordinal:
                record = next(self._records)
                self._next += 1
            assert record is not None, "asked twice"
            found.append(record)
        return found


class SplitLetters:
    """Writer of the nacked records of one split, block by block."""

    def __init__(self, split: SplitContext, queue: Writer, archive: ArchiveFile | None, originals: Originals) -> None:
        """``archive``: None if the step was already prepared, so that the archive has its letters."""
        job, source_node = split.job, split.source_node
        self._pipeline, self._source_node, self._queue = split.pipeline, source_node, queue
        self._archive, self._originals = archive, originals
        self._before = frozenset(job.nacked.get(source_node.id, ()))
        self._hash, self._offset = job.hashes.get(DEAD_LETTERS, ""), job.offsets.get(source_node.id, 0)

    def is_known(self, block: Block, place: int) -> bool:
        """Return whether the record was nacked before, so that the window and the queue already have it."""
        return block.replayed is not None or (bool(self._before) and block.boundary(place) - 1 in self._before)

    def take(self, block: Block, nacks: BlockNacks, ordinal: int) -> None:
        """Archive and stage the letters; mask the nacks if the file redacts. ``ordinal``: of the block's first record.

        Raises ``FatalError`` (``dead_letters.refused``).
        """
        redaction = self._pipeline.redaction
        # also if a step is staged again and nothing is archived: the masked text must be the same
        if self._archive is not None or redaction:
            originals = self._given(block, nacks.places(), ordinal)
            if redaction:
                for (place, nacked), original in zip(nacks, originals, strict=True):
                    known = [record for record in (nacked.record, original) if record is not None]
                    nacks.say(place, redaction.nack(nacked.nack, *known))
            if self._archive is not None:
                for letter in self._letters(block, nacks, originals, ordinal):
                    self._archive.add(letter)
        if places := [place for place in nacks.places() if not self.is_known(block, place)]:
            self._stage(nacks, places, ordinal)

    # -- the archive --------------------------------------------------------------------------------------------

    def _given(self, block: Block, places: Sequence[int], ordinal: int) -> Sequence[Record | None]:
        """Return the records as their source returned them; None for a dead letter without an original."""
        if block.replayed is not None:
            originals = [block.replayed.originals[place] for place in places]
            return [kept(original) if original else None for original in originals]
        if block.again is not None:
            return block.again(places)
        return self._originals.of([ordinal + place for place in places])

    def _letters(
        self, block: Block, nacks: BlockNacks, originals: Sequence[Record | None], ordinal: int
    ) -> Iterator[ArchivedLetter]:
        replayed = block.replayed
        for (place, nacked), original in zip(nacks, originals, strict=True):
            node, code, failed, key = nacked.node, nacked.nack.code, keep(nacked.record), (-1, -1)
            if replayed is not None:
                key = replayed.keys[place]
                if is_edit(node):
                    code = EDIT_FAILED
                if nacked.stands or code == EDIT_FAILED:
                    # it reached no node of the pipeline: its node and failed record stay unchanged
                    node, failed = replayed.node, replayed.failed[place]
            position, namespace = clean(str(nacked.record.position)), clean(nacked.record.collection)
            first = self._kept(nacked, original) if replayed is None else replayed.originals[place]
            yield ArchivedLetter(
                self._source_node.id, ordinal + place, position, namespace, node, code, said(nacked.nack),
                self._missed(block, nacks, place), *key, failed, first,
            )  # fmt: skip

    def _kept(self, nacked: Nacked, original: Record | None) -> bytes:
        """Return the original for the archive; nothing if it can't be kept, so that what is shown of it is not taken
        for what the source gave."""
        source = node_id(self._pipeline.program.pipeline, self._source_node.origin)
        is_only_shown = nacked.node == source and nacked.nack.code in SHOWN
        return b"" if original is None or is_only_shown else keep(original)

    def _missed(self, block: Block, nacks: BlockNacks, place: int) -> str:
        """Return the destinations without a copy: all of them if it was nacked before the fan-out."""
        ranks, replayed = nacks.missed(place), block.replayed
        pieces = [PIECES] if nacks.in_pieces(place) else []
        if 0 in ranks:
            return encode_missed([*pieces, *(replayed.missed if replayed else filter(None, [self._source_node.only]))])
        return encode_missed([*pieces, *(self._pipeline.outputs[rank - 1].id for rank in ranks)])

    # -- the queue ----------------------------------------------------------------------------------------------

    def _stage(self, nacks: BlockNacks, places: Sequence[int], ordinal: int) -> None:
        node, found = self._pipeline.dead_letters.node, dict(nacks)
        made = [self._dead_letter(found[place], ordinal + place) for place in places]
        letters, origins = processed(self._pipeline, made, places)
        self._queue.place(self._source_node.id, ordinal, origins)
        if refused := blamed(node, self._queue.write, letters):
            failed = found[origins[refused[0].place]].record
            raise queue_refuses(self._pipeline.redaction.nack(refused[0].nack, failed), node)

    def _dead_letter(self, nacked: Nacked, ordinal: int) -> Record:
        pipeline, record = self._pipeline, nacked.record
        if pipeline.dead_letters.destination.prints:
            record = pipeline.redaction.record(record)
        source = NackOrigin(pipeline.program.pipeline, self._source_node.origin, self._offset + ordinal, self._hash)
        return dead_letter(source, nacked.node, nacked.nack, record, pipeline.clock.now_ns)
