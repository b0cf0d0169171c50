"""Runs of one pipeline that crash, freeze and change their verdicts at named points."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from engine.frozen import ledger_plugin
from engine.frozen.owners import SILENT, Owners
from engine.mutants import counter_plugin
from engine.mutants.counter_plugin import counter
from engine.mutants.verdicts import Broken, sound
from lab.kills import Crash, crash, hooked
from lab.support import processor, queue
from lab.waiting import wait_until

from conduit_dagster.engine.report import RunResult
from conduit_dagster.state.pipeline_state import PipelineState, load

_PATIENCE = 120.0
Passage = tuple[str, int]
"""A point, and at which passage of it."""


class Frozen:
    """A run in its own thread that stands still at a point; its lease shows no heartbeat."""

    def __init__(self, bench: Bench, point: str, passage: int) -> None:
        self._inside, self._go_on = threading.Event(), threading.Event()
        bench.frozen_acts = Acts({(point, passage): self._stand})
        self._pool = ThreadPoolExecutor(1, "frozen")
        self._future: Future[RunResult] = self._pool.submit(bench.take, "p", SILENT)
        self._future.add_done_callback(lambda _: self._inside.set())
        assert self._inside.wait(_PATIENCE), f"it did not reach {point} in time"
        assert not self._future.done(), f"never reached {point}"

    def _stand(self) -> None:
        self._inside.set()
        assert self._go_on.wait(_PATIENCE), "nobody let it go on"

    def thaw(self) -> RunResult:
        """Let it continue, and wait for its end. A second call does nothing."""
        self._go_on.set()
        try:
            return self._future.result(_PATIENCE)
        except TimeoutError:
            raise Broken("hangs: the thawed owner") from None
        finally:
            self._pool.shutdown(wait=False)


class Acts:
    """What happens at the n-th passages of points."""

    def __init__(self, acts: dict[Passage, Callable[[], Any]]) -> None:
        self._acts = acts
        self._passed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def passed(self, point: str) -> None:
        """A passage, on any thread."""
        with self._lock:
            self._passed[point] += 1
            number = self._passed[point]
        if act := self._acts.get((point, number)):
            act()

    def wait_for(self, point: str, passage: int) -> None:
        """Wait until another thread gets there."""
        wait_until(lambda: self._passed[point] >= passage, f"{point} is passed {passage} times", _PATIENCE)


class Bench(Owners):
    """A project with a counter as its source."""

    frozen_acts = Acts({})
    acts = Acts({})
    _frozen: Frozen | None = None

    def set_up(self) -> Bench:
        """Writes the plugins."""
        self.write("plugins/counter.py", [counter_plugin.text(counter_plugin.MONOTONE)])
        self.write("plugins/ledger.py", [ledger_plugin.TEXT])
        return self

    def build(
        self,
        *destinations: dict[str, Any],
        upto: int = 4,
        nacks: tuple[int, ...] = (),
        window: tuple[int, int] = (0, 0),
        salt: str = "",
        **delivery: Any,
    ) -> None:
        """The pipeline, with a verdict for each record: it is delivered, or nacked."""
        refuse = [processor("refuse", "error", f"after.i in {list(nacks)}", message="bad")] if nacks else []
        self.pipeline(
            connectors=[counter(upto, salt), *destinations],
            processors=refuse,
            delivery={"strategy": "exactly-once", **delivery},
            **{"dead-letter-queue": queue(*window)},
        )

    def orders(self, **orders: list[int]) -> None:
        """What the ledgers do from now on."""
        (self.root / "orders.json").write_text(json.dumps(orders))

    def crashes(self, point: str, passage: int = 1, before: dict[Passage, Passage] | None = None) -> None:
        """A run that must end at the point; ``before``: passages that wait for others, on other threads."""
        waits = {first: partial(self.wait_for, *then) for first, then in (before or {}).items()}
        with self.acting({**waits, (point, passage): crash}), pytest.raises(Crash):
            self.take()

    def wait_for(self, point: str, passage: int = 1) -> None:
        """Wait until another thread of the current run gets there."""
        self.acts.wait_for(point, passage)

    @contextmanager
    def acting(self, acts: dict[Passage, Callable[[], Any]]) -> Iterator[Acts]:
        """What happens at the passages of points of the runs inside, but not of the frozen one."""
        self.acts = Acts(acts)
        with hooked(self._hook):
            yield self.acts
        self.acts = Acts({})

    def freeze(self, point: str, passage: int = 1) -> Frozen:
        """A run that stands still; inside of :meth:`acting`."""
        self._frozen = Frozen(self, point, passage)
        return self._frozen

    def overtaken(self, point: str) -> None:
        """An owner freezes at the point, another one runs, unharmed, to the end; then the old one continues."""
        with self.acting({}):
            old = self.freeze(point)
            sound(self.take())
            old.thaw()

    def release(self) -> None:
        """End a frozen run left behind by a scenario that failed."""
        if self._frozen is not None:
            self._frozen.thaw()

    def _hook(self, point: str, pipeline: str) -> None:
        # the frozen one has one destination and one step in flight, and so one thread
        frozen = threading.current_thread().name.startswith("frozen")
        (self.frozen_acts if frozen else self.acts).passed(point)

    # -- what is there --------------------------------------------------------------------------------------------

    def numbers(self, name: str = "out.jsonl") -> list[int]:
        """The records of one ordered file, in order. Empty lines are skipped."""
        try:
            return [json.loads(line)["i"] for line in self.lines(name) if line]
        except ValueError as error:
            raise Broken(f"torn: {error}") from None

    def parts(self, name: str = "out") -> list[int]:
        """The records of a folder, in order."""
        files = sorted((self.root / name).glob("step=*/*"))
        return [json.loads(line)["i"] for file in files for line in file.open()]

    def dead(self) -> list[int]:
        """The numbers of the dead letters."""
        return [after["i"] for _, _, after in self.letters()]

    @property
    def acked(self) -> list[int]:
        """Generation and position that the source was told."""
        file = self.root / "acks.json"
        return json.loads(file.read_text()) if file.exists() else [0, 0]

    def state(self) -> PipelineState:
        """What the store says."""
        with self.store() as database, database.connect() as connection:
            return load(connection, "p")

    @property
    def stored(self) -> list[int]:
        """Generation and position of the source in the store."""
        source = self.state().sources["in"]
        return [source.generation, source.position]
