"""What every destination of an edited pipeline must hold, in plain Python: nothing of the engine decides here.

The oracle is told what has happened: which consumers were retired, what was registered, how many records were logged,
which range a step was prepared for. What those records are, who gets them, in which order, and which of them become
dead letters is its own affair.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

FILTER, NACK, REFUSE = 5, 7, 6
"""Records are dropped, or nacked for all or for one destination, by what is left of their value over these."""


@dataclass
class Output:
    """A destination in the pipeline's file. One that was retired and comes back is a different one."""

    id: str
    place: str
    """The name of its file or table; one that comes back may have the same."""
    kind: str
    from_log: bool = False
    refuses: int | None = None


@dataclass
class Config:
    """What the pipeline's file says."""

    batch: int
    log: str
    unit: str = "a"
    drops: int | None = None
    nacks: int | None = None
    outputs: dict[str, Output] = field(default_factory=dict[str, Output])


@dataclass(frozen=True)
class Step:
    """A prepared step: its source, its start, and how many records it has read."""

    source: str
    generation: int
    start: object
    read: int
    only: str = ""
    is_replay: bool = False


@dataclass
class Expected:
    """What a destination receives."""

    output: Output
    values: list[int] = field(default_factory=list[int])
    settled: int = 0
    """How many of them are surely there: of the rest it is not known whether a run came as far."""
    first: int = 0
    upto: int = 0
    """The offsets of the log that it was promised."""
    at: int = 0
    """The next one of them."""

    @property
    def is_behind(self) -> bool:
        """Return whether a part of the promise is still to come."""
        return self.at < self.upto


@dataclass
class Letter:
    """A dead letter in the index. The queue may lack it if its record made one before."""

    value: int
    offset: int
    missed: list[str]
    """The destinations that have no copy; none: all that there are."""
    is_open: bool = True


Entry = tuple[int, int]
"""An offset and the value of its record."""


class Oracle:
    """The pipeline as it should be, from its first run on."""

    def __init__(self, units: Iterable[str]) -> None:
        self.files: dict[str, list[int]] = {unit: [] for unit in units}
        """The values of all records of each unit, whatever its files are called."""
        self.begins = dict.fromkeys(self.files, 0)
        """Where the file begins that has the unit's own path."""
        self.at = dict.fromkeys(self.files, 0)
        """How far each unit was read, or logged."""
        self.unit, self.logged = "", False
        self.living: dict[str, Expected] = {}
        self.retired: list[Expected] = []
        self.letters: list[Letter] = []
        self.queue: list[int] = []
        self._generations: dict[str, int] = {}
        self._highest = 0
        self._log: dict[int, int] = {}
        self._next = self._offset = 0
        self._chosen: list[Letter] = []

    # -- what an operator does ----------------------------------------------------------------------------------

    def may_rotate(self, unit: str) -> bool:
        """A source that has read nothing of a file does not look for it under another name."""
        return self.at[unit] > self.begins[unit]

    def rotated(self, unit: str) -> None:
        """The unit's file has another name; there is none under its own."""
        self.begins[unit] = len(self.files[unit])

    def rewound(self, generation: int) -> None:
        """Back to the beginning of the file, or of the contiguous part of the log."""
        self._is_new(generation)
        self._generations[self.unit] = generation
        if self.logged:
            self._offset = self._whole_from()
            # what a run that was killed left to be sent to one destination ends where all get the records again
            for expected in self.living.values():
                expected.upto = min(expected.upto, self._offset)
        else:
            self.at[self.unit] = self.begins[self.unit]

    def chosen(self) -> None:
        """A replay has taken the open letters."""
        self._chosen = [letter for letter in self.letters if letter.is_open]

    # -- what a run does ----------------------------------------------------------------------------------------

    def retire(self, present: Collection[str]) -> None:
        """Destinations have left the file. What only they missed belongs to nobody any more."""
        gone = [name for name in self.living if name not in present]
        self.retired.extend(self.living.pop(name) for name in gone)
        for letter in self.letters:
            if letter.is_open and letter.missed:
                letter.missed = [name for name in letter.missed if name not in gone]
                letter.is_open = bool(letter.missed)

    def register(self, config: Config, generation: int) -> None:
        """No step is open, and everything is as the file says from now on."""
        for expected in self.living.values():
            expected.settled = len(expected.values)
        self._use_log(config.log == "records")
        self._use_unit(config.unit, generation)
        for name, output in config.outputs.items():
            known = self.living.get(name)
            if known is None:
                self._admit(output)
            elif not output.from_log:
                known.upto = min(known.at, known.upto)

    def _use_log(self, logged: bool) -> None:
        if logged and not self.logged:
            self._next = self._offset
        if self.logged and not logged:
            assert self._offset == self._next, f"the log is left at {self._offset}, and ends at {self._next}"
        self.logged = logged

    def _use_unit(self, unit: str, generation: int) -> None:
        # another unit's records are unread in the log: they may have offsets that this one's generation has delivered
        is_ahead = unit != self.unit and self.logged and self._offset < self._next
        if unit not in self._generations or is_ahead:
            self._is_new(generation)
            self._generations[unit] = generation
        self.unit = unit
        self._is_current(generation)

    def _is_new(self, generation: int) -> None:
        assert generation > self._highest, f"generation {generation} is given, after {self._highest}"
        self._highest = generation

    def _is_current(self, generation: int) -> None:
        known = self._generations[self.unit]
        assert generation == known, f"{self.unit} has generation {generation}, and had {known}"

    def _admit(self, output: Output) -> None:
        expected = self.living[output.id] = Expected(output)
        if output.from_log and self.logged:
            expected.first = expected.at = min(self._offset, self._whole_from())
            expected.upto = self._offset

    def _whole_from(self) -> int:
        first = self._next
        while first - 1 in self._log:
            first -= 1
        return first

    def log_ends(self, offset: int) -> None:
        """Records were logged, up to the one before this offset."""
        assert self.logged
        count = offset - self._next
        values = self._take(count)
        self._log.update(zip(range(self._next, offset), values, strict=True))
        self._next = offset

    def _take(self, count: int) -> Sequence[int]:
        start = self.at[self.unit]
        values = self.files[self.unit][start : start + count]
        # a step without a record notes a file of which nothing can be read yet
        is_sound = len(values) == count and (count > 0 or start == len(self.files[self.unit]))
        assert is_sound, f"{count} records of {self.unit} behind {start}, which has {len(values)}"
        self.at[self.unit] += count
        return values

    def prepared(self, step: Step, config: Config) -> None:
        """A step is decided; every earlier one has ended."""
        assert self.living.keys() == config.outputs.keys()
        for expected in self.living.values():
            expected.settled = len(expected.values)
        if step.is_replay:
            self._send_again(step.read, config)
        elif step.only:
            self._catch_up(step, config)
        else:
            self._read(step, config)

    def _read(self, step: Step, config: Config) -> None:
        late = [name for name, expected in self.living.items() if expected.is_behind]
        assert not late, f"{late} are still behind"
        self._is_current(step.generation)
        first, self._offset = self._offset, self._offset + step.read
        if self.logged:
            assert step.start == first, f"a step from offset {step.start} on, instead of {first}"
            values: Sequence[int] = [self._log[offset] for offset in range(first, self._offset)]
        else:
            values = self._take(step.read)
        self._deliver(list(enumerate(values, first)), list(self.living), config)

    def _catch_up(self, step: Step, config: Config) -> None:
        expected = self.living[step.only]
        first, expected.at = expected.at, expected.at + step.read
        assert step.start == first, f"{step.only} catches up from {step.start} on, instead of {first}"
        assert expected.at <= expected.upto, f"{step.only} was promised offsets up to {expected.upto}"
        entries = [(offset, self._log[offset]) for offset in range(first, expected.at)]
        self._deliver(entries, [step.only], config, catches_up=True)

    def _deliver(self, entries: list[Entry], names: list[str], config: Config, catches_up: bool = False) -> None:
        before = {letter.offset for letter in self.letters} if catches_up else set[int]()
        for offset, value in entries:
            if _is(value, FILTER, config.drops):
                continue
            if _is(value, NACK, config.nacks):
                missed = names if catches_up else []
            elif not (missed := self._give(value, names, config)):
                continue
            self.letters.append(Letter(value, offset, list(missed)))
            if offset not in before:
                self.queue.append(value)

    def _give(self, value: int, names: Iterable[str], config: Config) -> list[str]:
        """The destinations that refuse it."""
        missed = [name for name in names if _is(value, REFUSE, config.outputs[name].refuses)]
        for name in names:
            if name not in missed:
                self.living[name].values.append(value)
        return missed

    def _send_again(self, count: int, config: Config) -> None:
        letters, self._chosen = self._chosen[:count], self._chosen[count:]
        assert len(letters) == count, f"a replay of {count} letters, of which {len(letters)} are left"
        for letter in letters:
            self._replay(letter, config)

    def _replay(self, letter: Letter, config: Config) -> None:
        late = {name for name, one in self.living.items() if letter.offset in range(one.first, one.upto)}
        if not letter.missed and late:
            letter.missed = [name for name in self.living if name not in late]
            letter.is_open = bool(letter.missed)
        names = letter.missed or list(self.living)
        if not letter.is_open or _is(letter.value, FILTER, config.drops):
            letter.is_open = False
        elif not _is(letter.value, NACK, config.nacks):
            letter.missed = self._give(letter.value, names, config)
            letter.is_open = bool(letter.missed)

    # -- at the end ---------------------------------------------------------------------------------------------

    def check(self, held: Mapping[str, Sequence[int]], queue: Sequence[int], open_letters: int) -> None:
        """``held``: the content of each place. Raises ``AssertionError``."""
        for expected in self.living.values():
            assert not expected.is_behind, f"{expected.output.id} has not caught up"
            expected.settled = len(expected.values)
        for place, found in held.items():
            every = [one for one in (*self.retired, *self.living.values()) if one.output.place == place]
            parts = [one.values for one in every]
            assert _is_one_after_another(found, every), f"{place}: {list(found)}, instead of {parts}"
        assert list(queue) == self.queue, f"dead letters: {queue}, instead of {self.queue}"
        should = sum(letter.is_open for letter in self.letters)
        assert open_letters == should, f"{open_letters} open letters, instead of {should}"

    def check_read(self) -> None:
        """Everything was read, and everything logged was delivered."""
        ends = {unit: len(values) for unit, values in self.files.items()}
        assert self.at == ends, f"sources stand at {self.at}, instead of {ends}"
        assert not self.logged or self._offset == self._next, f"{self._offset} of {self._next} logged records"


def _is(value: int, over: int, rest: int | None) -> bool:
    return rest is not None and value % over == rest


def _is_one_after_another(found: Sequence[int], every: Sequence[Expected]) -> bool:
    """Return whether this is what all of them brought; for a last delivery whose end is unknown, how much it may be."""
    if not every:
        return not found
    values, settled = every[0].values, every[0].settled
    return any(
        list(found[:count]) == values[:count] and _is_one_after_another(found[count:], every[1:])
        for count in range(settled, len(values) + 1)
    )
