"""Whether a pipeline that was killed kept its promise, record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.matrix.kill_cases import Case
from engine.matrix.kill_destinations import Place, Row
from engine.matrix.kill_evidence import Crash, Ending
from engine.matrix.kill_scenarios import FIRST

from conduit_dagster.engine.report import RunResult

LOSING = ("after-prepare", "mid-index", "before-publish", "mid-publish", "after-publish")
"""Where at-most-once may have positions behind records that no destination has yet."""


class Verdict:
    """Collects the problems of one case."""

    def __init__(self, case: Case, crashes: Sequence[Crash]) -> None:
        self._case, self._plan, self._strategy = case, case.of.plan, case.of.strategy
        self._points = [crash.point for crash in crashes]
        self._lost: frozenset[int] = frozenset().union(*(crash.last for crash in crashes))
        self._repeated: frozenset[int] = frozenset().union(*(crash.prepared for crash in crashes))
        self.flaws: list[str] = []

    def _flaw(self, text: str) -> None:
        self.flaws.append(f"{self._case}: {text}")

    # -- records ------------------------------------------------------------------------------------------------

    def outputs(self, places: Sequence[Place], name: str) -> None:
        """Everything in the destinations and the dead-letter queue."""
        for number, place in enumerate(places):
            rows = place.rows(f"{name}_{number}")
            self._records(f"out{number}", [n for row in rows for n in self._plan.numbers(row)], self._plan.delivered)
            if number and any(row["m"] != "2" for row in rows):
                self._flaw("the second destination's processor was left out")
        self._records("dead letters", [_letter(row) for row in places[0].rows(f"{name}_dead")], self._plan.letters)

    def _records(self, where: str, got: list[int], wanted: list[int]) -> None:
        counts = Counter(got)
        if extra := sorted(counts.keys() - set(wanted)):
            self._flaw(f"{where} has what it must not have: {extra}")
            got = [n for n in got if n not in extra]
        missing = [n for n in wanted if n not in counts]
        twice = [n for n, times in counts.items() if times > 1]
        if illicit := [n for n in missing if not self._may_miss(n)]:
            self._flaw(f"{where} misses {illicit}")
        if illicit := [n for n in twice if not self._may_repeat(n)]:
            self._flaw(f"{where} has twice {illicit}")
        self._order(where, got, wanted)
        if self._loses_all and (kept := [n for n in got if n in self._lost]):
            self._flaw(f"{where} has {kept}, which at-most-once must not send again")

    def _order(self, where: str, got: list[int], wanted: list[int]) -> None:
        """For each source, leaving out repeats."""
        first = set(got)
        for low in FIRST.values():
            mine = [n for n in dict.fromkeys(got) if low <= n < low + 100]
            if mine != [n for n in wanted if n in first and low <= n < low + 100]:
                self._flaw(f"{where} is out of order: {mine}")

    def _may_repeat(self, n: int) -> bool:
        return self._strategy == "at-least-once" and n in self._repeated

    def _may_miss(self, n: int) -> bool:
        if self._strategy != "at-most-once" or n not in self._lost:
            return False
        # with steps in flight one may be between prepare and publish wherever another one is
        return "max-in-flight" in self._plan.delivery or any(point in LOSING for point in self._points)

    @property
    def _loses_all(self) -> bool:
        alone = self._strategy == "at-most-once" and "max-in-flight" not in self._plan.delivery
        return alone and self._points in (["after-prepare"], ["mid-index"])

    # -- state --------------------------------------------------------------------------------------------------

    def finished(self, result: RunResult) -> None:
        """How the last run ended: at the end of its sources, or at the record that exceeds the window."""
        if self._plan.end is None:
            if result.status != "stopped" or result.error is not None:
                self._flaw(f"ended as {result.status}: {result.error}")
        elif result.error is None or f"bad {self._plan.end}" not in result.error.message:
            self._flaw(f"did not fail at record {self._plan.end}: {result.status} {result.error}")

    def nothing_new(self, result: RunResult) -> None:
        """A further run."""
        self.finished(result)
        if result.progress.read:
            self._flaw(f"the run after the end read {result.progress.read} records")

    def store(self, found: Ending) -> None:
        """The state store is clean."""
        if found.open_steps or found.open_deliveries:
            self._flaw(f"left open: steps {found.open_steps}, deliveries {found.open_deliveries}")
        handled = sum(found.handled.values())
        if handled != len(self._plan.handled):
            self._flaw(f"{handled} records are handled, not {len(self._plan.handled)}")
        if found.letters != sorted(self._plan.letters):
            self._flaw(f"the dead-letter index has {found.letters}, not {self._plan.letters}")


def _letter(row: Row) -> int:
    return int(row["payload"]["after"]["i"])
