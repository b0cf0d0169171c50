"""Source that replays the dead letters of one source, with its own steps and delivery hashes.

A position is the key of a letter: its step and number. The letters of a replay are selected before its first step, so
that a range always means the same letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

from conduit_dagster import storage
from conduit_dagster.engine.dead_letters.archive import Archive, ArchivedLetter, record_of
from conduit_dagster.engine.dead_letters.letter_layout import NOBODY, decode_missed, encode_missed
from conduit_dagster.node_ids import input_id
from conduit_dagster.record import Nack, Record
from conduit_dagster.sdk import Block, Limit, Position, ReadOptions, Replayed, Source, Split
from conduit_dagster.state.dead_letter_replays import ChosenLetter, LetterReplays
from conduit_dagster.state.dead_letters import Key
from conduit_dagster.state.pipeline_state import REPLAY
from conduit_dagster.state.steps import Decision, LetterPart

_STEP = 20_000
"""Maximum number of letters per step: their locations are part of its plan's splits, and one transaction closes them.
"""
_GRAIN = 1_000
_WEIGHT = 1_000
_BLOCK = 3_000
_BLOCK_BYTES = 4 << 20


def replay_id(source: str) -> str:
    """Return the id of a source's replay source. No connector's id has an ``@``."""
    return input_id(f"replay@{source}", "replay")


class ReplaySource(Source):
    """Source of letters from the archive: the original records, or the failed ones."""

    name = REPLAY
    sets_metadata = True

    def __init__(self, real: Source, origin: str, replay: int, failed: bool) -> None:
        """``failed``: read the records in their state at the node that nacked them."""
        super().__init__(real.settings, real.context)
        self.origin, self._replay, self._failed = origin, replay, failed
        self._letters: LetterReplays | None = None
        self._folder = ""
        self._late: Mapping[str, Sequence[range]] = {}
        self._every: Sequence[str] = ()

    def attach(
        self, letters: LetterReplays, folder: str, late: Mapping[str, Sequence[range]], every: Sequence[str]
    ) -> None:
        """Attach the index, on the driver only; splits name files and rows, so tasks need no index.

        ``late``: destinations that are sent ranges of the log separately, with their offsets; ``every``: all
        destinations.
        """
        self._letters, self._folder, self._late, self._every = letters, folder, late, every

    @property
    def letters(self) -> LetterReplays:
        """Index of the letters."""
        assert self._letters is not None, "only the driver knows the index"
        return self._letters

    def initial(self) -> Position:
        """Return the position before the first letter."""
        return None

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the last letter of the next step; ``start`` if none is left."""
        return self.letters.end_of(self._replay, self.origin, _key(start), min(limit.records, _STEP)) or start

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return splits of consecutive letters, with the rows of the archive that hold them."""
        found = self.letters.between(self._replay, self.origin, _key(start), _key(end) or (0, 0))
        chosen = [one._replace(missed=self._missed(one), offset=0) for one in found]
        grain = max(_GRAIN, -(-len(chosen) // n))
        parts = self.letters.parts(one.part for one in chosen)
        return [
            self._split(
                start if first == 0 else list(_id(chosen[first - 1])), first, chosen[first : first + grain], parts
            )
            for first in range(0, len(chosen), grain)
        ]

    def _missed(self, one: ChosenLetter) -> str:
        """Return the destinations without those that get the record from the log: a replay must not duplicate it.

        If none remain, return ``NOBODY``: an empty list would mean all of them.
        """
        late = {name for name, sent in self._late.items() if any(one.offset in offsets for offsets in sent)}
        if one.missed or not late:
            return one.missed
        return encode_missed([name for name in self._every if name not in late] or [NOBODY])

    def _split(
        self, start: Position, ordinal: int, mine: Sequence[ChosenLetter], parts: dict[str, LetterPart]
    ) -> Split:
        named = {one.part: parts.get(one.part) for one in mine}
        files = {name: [part.bytes, part.sha256] for name, part in named.items() if part is not None}
        detail = {"folder": self._folder, "files": files, "runs": [list(run) for run in _runs(mine)]}
        return Split(start, ordinal, len(mine), len(mine) * _WEIGHT, detail)

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block | list[Record]]:
        """Yield the letters' records. Raises ``FatalError`` (``dead_letters.damaged``) if a file has changed."""
        archive = Archive(split.detail["folder"])
        for name, (size, digest) in split.detail["files"].items():
            archive.verify(LetterPart(name, 0, size, digest))
        runs = [_Run(*run) for run in split.detail["runs"]]
        for part, group in groupby(runs, lambda run: run.part):
            yield from self._blocks(archive, part, list(group))

    def _blocks(self, archive: Archive, part: str, runs: list[_Run]) -> Iterator[Block]:
        letters = archive.letters(part, [line for run in runs for line in range(run.line, run.line + run.letters)])
        url = storage.join(archive.folder, part)
        for run in runs:
            first = 0
            for some in _blocks(islice(letters, run.letters)):
                yield self._block(run, first, some, url)
                first += len(some)

    def _block(self, run: _Run, first: int, letters: list[ArchivedLetter], url: str) -> Block:
        keys = [(run.step, run.number + first + i) for i in range(len(letters))]
        nacks: dict[int, tuple[str, Nack]] = {}
        records: list[Record] = []
        for i, letter in enumerate(letters):
            if not (self._failed or letter.original):
                nacks[i] = run.node, _NO_ORIGINAL
            records.append(record_of(letter.failed if self._failed or i in nacks else letter.original, url))
        failed, originals = [letter.failed for letter in letters], [letter.original for letter in letters]
        replayed = Replayed(run.node, decode_missed(run.missed), keys, failed, originals, self._failed)
        return Block(records, lambda i: list(keys[i]), nacks=nacks, replayed=replayed)


def _blocks(letters: Iterable[ArchivedLetter]) -> Iterator[list[ArchivedLetter]]:
    """Yield blocks of a few thousand letters, or of fewer large ones."""
    some: list[ArchivedLetter] = []
    size = 0
    for letter in letters:
        some.append(letter)
        size += len(letter.failed) + len(letter.original)
        if len(some) >= _BLOCK or size >= _BLOCK_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


_NO_ORIGINAL = Nack("dead_letters.no_original", "its original record is not kept: replay it with --from node")


class _Run(NamedTuple):
    """Letters that are consecutive in the index and in a file, and failed in the same way."""

    part: str
    node: str
    missed: str
    step: int
    number: int
    line: int
    letters: int


def _runs(chosen: Sequence[ChosenLetter]) -> Iterator[_Run]:
    run: _Run | None = None
    for one in chosen:
        if run is not None:
            number, line = run.number + run.letters, run.line + run.letters
            if one == ChosenLetter(run.step, number, run.part, line, run.node, run.missed):
                run = run._replace(letters=run.letters + 1)
                continue
            yield run
        run = _Run(one.part, one.node, one.missed, one.step, one.number, one.line, 1)
    if run is not None:
        yield run


class Place(NamedTuple):
    """Location of a letter in the index and in the archive."""

    key: Key
    part: str
    line: int


def letter_at(decision: Decision, source: str, ordinal: int) -> Place:
    """Locate the letter behind a record of a replay's step. Raises ``LookupError`` if there is none."""
    for split in (one["split"] for task in decision.splits for one in task if one["source"] == source):
        left = ordinal - split["ordinal"]
        if left >= split["records"]:
            continue
        for run in (_Run(*values) for values in split["detail"]["runs"]):
            if left < run.letters:
                return Place((run.step, run.number + left), run.part, run.line + left)
            left -= run.letters
    raise LookupError(f"record {ordinal} of {source}")


def _id(one: ChosenLetter) -> Key:
    return one.step, one.number


def _key(position: Position) -> Key | None:
    return None if position is None else (position[0], position[1])
