"""Steps follow each other: mutants of cutting, voiding and resolving."""

from __future__ import annotations

import json

import pytest
from engine.frozen.ledger_plugin import ledger
from engine.mutants import mutants_of_chains as without
from engine.mutants.bench import Bench
from engine.mutants.commits import Doomed, before_each_commit, chained
from engine.mutants.conftest import Caught, Mutant
from engine.mutants.verdicts import hold, require, sound
from lab.kills import Crash

IN_FLIGHT = {"batch-size": 1, "max-in-flight": 3}
STRICT = (3, 1)


def cut_in_one(bench: Bench) -> None:
    """The third record is refused: at no moment does the store hold two plans for one record, or none."""
    bench.build(ledger(), nacks=(2, 3), window=STRICT)
    with before_each_commit(chained):
        require(bench.take().error is not None, "the scenario")
    hold(bench.ledger(), [1])
    hold(bench.dead(), [2])


@pytest.mark.parametrize("mutant", [without.cut, without.cutplanfirst])
def test_without_cutting_in_one_transaction(caught: Caught, mutant: Mutant) -> None:
    """Without it nothing breaks in the model if the void comes first: there the rule itself is checked."""
    caught(cut_in_one, mutant, "no chain")


def cut_and_killed(bench: Bench) -> None:
    """Killed right before the second commit after the cut; then the verdicts change, and everything is delivered."""
    bench.build(ledger(), nacks=(2, 3), window=STRICT)
    doomed = Doomed(2)
    with before_each_commit(doomed), bench.acting({("before-replan", 1): doomed.arm}), pytest.raises(Crash):
        bench.take()
    bench.build(ledger(), window=STRICT)
    sound(bench.take())
    hold(bench.ledger(), [1, 2, 3, 4])


def test_without_voiding_at_the_same_time(caught: Caught) -> None:
    caught(cut_and_killed, without.cutplanfirst, "doubled")


def cut_with_others_in_flight(bench: Bench) -> None:
    """Record 4 is refused, and nothing is left of its step, while record 5 is staged; a crash; then none is nacked."""
    bench.build(ledger(), upto=5, nacks=(3, 4), window=STRICT, **IN_FLIGHT)
    bench.crashes("after-replan", before={("before-done", 3): ("after-plan", 5)})
    bench.build(ledger(), upto=5, window=STRICT, **IN_FLIGHT)
    sound(bench.take())
    hold(bench.ledger(), [1, 2, 4, 5])
    hold(bench.dead(), [3])


def test_without_voiding_later_steps(caught: Caught) -> None:
    caught(cut_with_others_in_flight, without.cutvoidlater, "lost")


def failed_with_others_in_flight(bench: Bench) -> None:
    """Step 1 can't be published, while steps 2 and 3 are staged: only it is open when the run has ended."""
    bench.build(ledger(), **IN_FLIGHT)
    bench.orders(outage=[1])
    with bench.acting({("before-publish", 1): lambda: bench.wait_for("after-plan", 3)}):
        require(bench.take().error is not None, "the scenario")
    still = [step.plan.step for step in bench.state().open_steps]
    require(still == [1], f"open: {json.dumps(still)}")
    bench.orders()
    sound(bench.take())
    hold(bench.ledger(), [1, 2, 3, 4])


def test_without_voiding_after_a_failure(caught: Caught) -> None:
    """Without it nothing breaks in the model: the rule itself is checked."""
    caught(failed_with_others_in_flight, without.failvoid, "open")


def refused_late(bench: Bench) -> None:
    """Record 2 is refused by the destination when record 3, nacked, is already staged: one too many."""
    bench.build(ledger(), upto=6, nacks=(3,), window=(4, 1), **{"batch-size": 2, "max-in-flight": 3})
    bench.orders(reject=[2])
    with bench.acting({("before-nack", 1): lambda: bench.wait_for("after-plan", 3)}):
        result = bench.take()
    require(result.error is not None, "threshold not obeyed")
    hold(bench.dead(), [2])
    hold(bench.ledger(), [1])


def test_without_resolving_in_order(caught: Caught) -> None:
    caught(refused_late, without.resolve, "threshold not obeyed")
