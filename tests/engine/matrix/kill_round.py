"""A round of the kill matrix: one project, many cases, as many processes as the longest case has kills."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.matrix.kill_cases import Case, Combination
from engine.matrix.kill_evidence import Crash, crash, ending
from engine.matrix.kill_process import killed
from engine.matrix.kill_runs import Runs
from engine.matrix.kill_scenarios import write_sources
from engine.matrix.kill_verdicts import Verdict
from lab.chain_lab import upstream
from lab.kills import hooked
from lab.postgres_tables import drop_slots
from lab.support import Lab, destination, source
from pyspark.sql import SparkSession


@dataclass(frozen=True)
class World:
    """What a round needs: the servers, a session that finishes what was killed, a folder for each round."""

    spark: SparkSession
    connect: Any
    """Where the processes run that are killed: ``url`` and ``env``."""
    database: Callable[[], str]
    """Gives the URL of a new PostgreSQL database."""
    folder: Path

    def within(self, name: str) -> World:
        """The same, in a folder of its own."""
        return replace(self, folder=self.folder / name)


@dataclass
class Member:
    """A case in its round."""

    case: Case
    pipeline: str
    name: str
    """Of its outputs."""
    crashes: list[Crash] = field(default_factory=list[Crash])
    survived: dict[int, str] = field(default_factory=dict[int, str])
    """Kills that it did not come to, by their place, and how that run ended."""


class Round:
    """The cases of one project."""

    def __init__(self, world: World, cases: Sequence[Case]) -> None:
        self._world = world
        world.folder.mkdir(parents=True)
        self._lab = Lab(world.folder, world.spark)
        self._database = world.database()
        self.members = [Member(case, f"p{i}", f"n{i}") for i, case in enumerate(cases)]
        write_sources(self._lab)
        if any(member.case.of.plan.chained for member in self.members):
            self._log()
        for member in self.members:
            self._build(member)

    def _log(self) -> None:
        """Run the pipeline that others read."""
        upstream(self._lab, source("./in3.jsonl"), destination("first"))
        with Runs(self._lab.root, self._world.spark) as runs:
            assert runs.once("a").error is None

    def _build(self, member: Member) -> None:
        of = member.case.of
        of.plan.build(self._lab, member.pipeline, member.name, self._places(of), of.strategy)

    def _places(self, of: Combination) -> list[Any]:
        return of.plan.places(self._lab, of.kind, self._database)

    # -- kills --------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Take every case through all its kills."""
        for turn in range(max(len(member.case.kills) for member in self.members)):
            self._kill([member for member in self.members if len(member.case.kills) > turn], turn)

    def _kill(self, members: list[Member], turn: int) -> None:
        wanted = {member.pipeline: member.case.kills[turn] for member in members}
        report = killed(self._world.connect, self._lab.root, wanted, str(turn))
        with Runs(self._lab.root, self._world.spark) as runs:
            for member in members:
                if member.pipeline in report["dead"]:
                    member.crashes.append(crash(runs.database, member.pipeline, member.case.kills[turn]))
                else:
                    member.survived[turn] = report["ended"][member.pipeline]

    # -- to the end ---------------------------------------------------------------------------------------------

    def judge(self) -> list[str]:
        """Run every case to its end, and once more; return the problems."""
        verdicts = {member.pipeline: Verdict(member.case, member.crashes) for member in self.members}
        with Runs(self._lab.root, self._world.spark) as runs:
            for pipeline, result in runs.all(verdicts).items():
                verdicts[pipeline].finished(result)
            for pipeline, result in runs.all(verdicts).items():
                verdicts[pipeline].nothing_new(result)
            for member in self.members:
                verdict = verdicts[member.pipeline]
                verdict.outputs(self._places(member.case.of), member.name)
                verdict.store(ending(runs.database, member.pipeline))
        if any(member.case.of.plan.table for member in self.members):
            drop_slots(self._database)
        gc.collect()  # destinations without references close their connections
        return [flaw for verdict in verdicts.values() for flaw in verdict.flaws]

    def passed(self) -> dict[str, Counter[str]]:
        """Run every case to its end without a kill, and count how often each of its points is passed."""
        counts = {member.pipeline: Counter[str]() for member in self.members}

        def count(point: str, pipeline: str) -> None:
            counts[pipeline][point] += 1

        with hooked(count), Runs(self._lab.root, self._world.spark) as runs:
            runs.all(counts)
        return counts
