"""The explorer, on models small enough to count by hand."""

from __future__ import annotations

from collections.abc import Callable

from model.case import Case
from model.explore import explore


class Counter:
    """Counts to a limit; a fault subtracts one."""

    def __init__(self, limit: int, bad: Callable[[int, bool], str | None], cyclic: bool = False) -> None:
        self._limit, self._bad, self._cyclic = limit, bad, cyclic

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> list[tuple[str, int]]:
        moves = [("up", state + 1), ("twice", state + 2)] if state < self._limit else []
        return [*moves, ("back", 0)] if self._cyclic else moves

    def faults(self, state: int) -> list[tuple[str, int]]:
        return [("fault", state - 1)] if state > 0 else []

    def violation(self, state: int, final: bool) -> str | None:
        return self._bad(state, final)

    def outcome(self, state: int) -> str:
        return f"at {state}"


def test_sees_every_state_once_and_counts_final_ones() -> None:
    result = explore(Counter(3, lambda state, final: None))
    assert (result.states, result.outcomes) == (5, {"at 3": 1, "at 4": 1})
    assert result.complete and not result.violation


def test_gives_a_shortest_trace() -> None:
    result = explore(Counter(9, lambda state, final: "four" if state == 4 else None))
    assert (result.violation, result.trace) == ("four", ["twice", "twice"])


def test_tells_the_model_which_states_are_final() -> None:
    result = explore(Counter(3, lambda state, final: f"final {state}" if final else None))
    assert result.violation == "final 3"


def test_faults_may_form_cycles_and_steps_may_not() -> None:
    assert explore(Counter(3, lambda state, final: None)).violation == ""
    assert "may never end" in explore(Counter(3, lambda state, final: None, cyclic=True)).violation


def test_says_when_a_limit_ended_it() -> None:
    result = explore(Counter(1000, lambda state, final: None), max_states=10)
    assert not result.complete and result.states < 20


def test_a_case_says_what_is_not_as_expected() -> None:
    broken, sound = Counter(3, lambda state, final: "broken" if state == 2 else None), Counter(3, lambda s, f: None)
    assert Case("rules", "", sound).problem(explore(sound)) == ""
    assert Case("rules", "", broken).problem(explore(broken)) == "broken"
    assert Case("mutants", "", broken, "bro").problem(explore(broken)) == ""
    assert Case("mutants", "", broken, "lost").problem(explore(broken)) == "expected another violation: lost"
    assert Case("mutants", "", sound, "lost").problem(explore(sound)) == "expected a violation: lost"
