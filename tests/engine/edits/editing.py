"""A pipeline that is edited between runs, with an oracle that follows each run through its kill points."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from engine.edits.oracle import FILTER, NACK, REFUSE, Config, Oracle, Output, Step
from engine.matrix.kill_destinations import PLACES, Place
from lab.chain_lab import rewound
from lab.kills import Crash, hooked
from lab.support import DECODE, Lab, processor, queue, source

from conduit_dagster.engine.operate.rewind import RewindTarget
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.pipeline_state import PipelineState, load
from conduit_dagster.state.tables import dead_letters, logs

UNITS = ("a", "b")
Action = tuple[Any, ...]
"""What is done, with what; the last item is where the run after it crashes: ``after-plan:2``, or empty.

``None``: there is no run after it.
"""
_MOST_RUNS = 4


class Editing:
    """One pipeline. An action that makes no sense in its state does nothing, so lists of them can be shortened."""

    folders = False
    """Whether a unit is a folder: what is appended becomes a new file, or lies behind its newest one."""

    def __init__(self, lab: Lab, database: Callable[[], str], batch: int, log: str, kinds: dict[str, str]) -> None:
        """``database``: creates one for destinations that need it; ``kinds`` of destinations by id."""
        self._lab, self._database, self._kinds = lab, database, kinds
        self._url: str | None = None
        self.oracle, self.config = Oracle(UNITS), Config(batch, log)
        self._values = self._places = 0
        self._failure: Exception | None = None
        self._crash: str | None = ""
        for unit in UNITS:
            lab.write(f"{unit}.jsonl", [])
            (lab.root / unit).mkdir()
        self._add(next(iter(kinds)), False, False)

    def do(self, action: Action) -> None:
        """The action, and the run after it."""
        name, *words, self._crash = action
        getattr(self, f"_{name}")(*words)
        if self._crash is not None:
            self._run()

    # -- actions ------------------------------------------------------------------------------------------------

    def _append(self, unit: str, count: int) -> None:
        values = range(self._values, self._values + count)
        self._values += count
        name = f"{unit}/{self._values // 3:03d}.jsonl" if self.folders else f"{unit}.jsonl"
        self._lab.write(name, [{"i": value} for value in values], mode="a")
        self.oracle.files[unit].extend(values)

    def _rotate(self, unit: str) -> None:
        path = self._lab.root / f"{unit}.jsonl"
        if not self.folders and self.oracle.may_rotate(unit):
            path.rename(f"{path}.{len(list(path.parent.glob(f'{path.name}.*')))}")
            self._lab.write(path.name, [])
            self.oracle.rotated(unit)

    def _drop(self, rest: int | None) -> None:
        self.config.drops = rest

    def _nack(self, rest: int | None) -> None:
        self.config.nacks = rest

    def _refuse(self, name: str, rest: int | None) -> None:
        if name in self.config.outputs:
            self.config.outputs[name].refuses = rest

    def _switch(self, unit: str) -> None:
        self.config.unit = unit

    def _log(self, log: str) -> None:
        self.config.log = log
        if log != "records":
            for output in self.config.outputs.values():
                output.from_log = False

    def _add(self, name: str, from_log: bool, is_back: bool) -> None:
        """``is_back``: in the place that it had before, if any."""
        if name in self.config.outputs:
            return
        known = self.oracle.living.get(name)
        # one that was not retired is still the same one: it keeps its place
        output = known.output if known is not None else self._new_output(name, is_back)
        output.from_log, output.refuses = from_log and self.config.log == "records", None
        self.config.outputs[name] = output

    def _new_output(self, name: str, is_back: bool) -> Output:
        before = [one.output for one in self.oracle.retired if one.output.id == name] if is_back else []
        if before:
            return dataclasses.replace(before[-1])
        self._places += 1
        output = Output(name, f"{name}{self._places}", self._kinds[name])
        self._place(output).prepare(output.place, letters=False)
        return output

    def _remove(self, name: str) -> None:
        if len(self.config.outputs) > 1:
            self.config.outputs.pop(name, None)

    def _rewind(self) -> None:
        if not self.oracle.unit:
            return
        self._write()
        try:
            facts = rewound(self._lab, "p", "in", RewindTarget("start"))
        except FatalError as error:
            assert error.code in ("positions.step_open", "positions.source_changed"), (error.code, error.message)
        else:
            if facts["changed"]:
                self.oracle.rewound(facts["generation"])

    def _replay(self) -> None:
        if self.oracle.unit and self._passing(self._send_again):
            self._crash = None  # it has crashed: the next action finds what it left behind

    def _send_again(self) -> None:
        try:
            self._lab.replay()
        except FatalError as error:
            if error.code != "dead_letters.none":
                self._allow(error)

    # -- runs ---------------------------------------------------------------------------------------------------

    def _run(self) -> int:
        """How many records it read."""
        read = 0

        def run() -> None:
            nonlocal read
            result = self._lab.run()
            read = result.progress.read
            if result.error is not None:
                self._allow(result.error)

        self._passing(run)
        return read

    def _allow(self, error: Any) -> None:
        if self._failure is None:
            assert error.code == "log.not_read_up", (error.code, error.message)
            self.config.log = "records"

    def _passing(self, run: Callable[[], None]) -> bool:
        """Run with the oracle at the kill points; return whether it crashed."""
        self._write()
        point, _, passage = (self._crash or "").partition(":")
        left, crashed = int(passage or 1), False

        def hook(passed: str, _: str) -> None:
            nonlocal left
            try:
                self._passed(passed)
            except Exception as error:  # noqa: BLE001  # the engine would take it for a failure of the pipeline
                self._failure = self._failure or error
                raise Crash from None
            left -= passed == point
            if passed == point and left == 0:
                raise Crash

        with hooked(hook):
            try:
                run()
            except Crash:
                crashed = True
        if self._failure is not None:
            raise self._failure
        return crashed

    def _passed(self, point: str) -> None:
        if point == "after-reack":
            self.oracle.retire(self.config.outputs)
        elif point == "after-register":
            self.oracle.register(self.config, self._state().sources["in"].generation)
        elif point == "after-log":
            with self._lab.store() as database, database.connect() as connection:
                self.oracle.log_ends(connection.execute(sa.select(logs.c.next_offset)).scalar_one())
        elif point == "after-prepare":
            self.oracle.prepared(_decided(self._state()), self.config)
        elif point == "after-replay":
            self.oracle.chosen()

    def _state(self) -> PipelineState:
        with self._lab.store() as database, database.connect() as connection:
            return load(connection, "p")

    # -- the pipeline's file ------------------------------------------------------------------------------------

    def _write(self) -> None:
        config = self.config
        self._lab.pipeline(
            connectors=[
                source(f"./{config.unit}" + ("/" if self.folders else ".jsonl")),
                *map(self._connector, config.outputs.values()),
            ],
            processors=[DECODE, *_filter(config.drops), *_error("bad", NACK, config.nacks)],
            delivery={"strategy": "exactly-once", "log": config.log, "batch-size": config.batch},
            **{"dead-letter-queue": queue()},
        )

    def _connector(self, output: Output) -> dict[str, Any]:
        place, refuses = self._place(output), _error("refuse", REFUSE, output.refuses)
        settings = place.settings(output.place, letters=False)
        more = {"start-from": "log"} if output.from_log else {}
        kind = {"id": output.id, "type": "destination", "plugin": place.plugin}
        return {**kind, "settings": settings, "processors": refuses, **more}

    def _place(self, output: Output) -> Place:
        if output.kind == "postgres" and self._url is None:
            self._url = self._database()
        return PLACES[output.kind](self._lab.root, self._url)

    # -- at the end ---------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Run until a further run reads nothing, with one unit and with the other; then compare."""
        self._crash, last = "", self.config.unit
        for unit in (last, *(unit for unit in UNITS if unit != last)):
            self._switch(unit)
            self._drain()
        self.oracle.check_read()
        every = [*self.oracle.living.values(), *self.oracle.retired]
        held = {one.output.place: self._held(one.output) for one in every}
        letters = [after["i"] for _, _, after in self._lab.letters()]
        self.oracle.check(held, letters, self._open_letters())

    def _drain(self) -> None:
        for _ in range(_MOST_RUNS):
            if self._run() == 0 and self.oracle.unit == self.config.unit:
                return
        raise AssertionError(f"{_MOST_RUNS} runs, and still something to read")

    def _held(self, output: Output) -> list[int]:
        return [row["i"] for row in self._place(output).rows(output.place)]

    def _open_letters(self) -> int:
        still = sa.select(sa.func.count()).where(dead_letters.c.state == "open")
        with self._lab.store() as database, database.connect() as connection:
            return connection.execute(still.select_from(dead_letters)).scalar_one()


def _decided(state: PipelineState) -> Step:
    """The step that has just been prepared: there is at most one."""
    ((plan, decision),) = [(step.plan, step.decision) for step in state.open_steps if step.decision is not None]
    (span,) = plan.ranges
    read = decision.sources[span.source].read
    return Step(span.source, span.generation, span.start, read, plan.only, bool(plan.replay))


def _filter(rest: int | None) -> list[dict[str, Any]]:
    return [] if rest is None else [processor("drop", "filter", f"after.i % {FILTER} == {rest}")]


def _error(name: str, over: int, rest: int | None) -> list[dict[str, Any]]:
    return [] if rest is None else [processor(name, "error", f"after.i % {over} == {rest}", message="no")]
