"""Owners that were frozen and continue: mutants of the lease's epoch and of acks."""

from __future__ import annotations

from engine.frozen.ledger_plugin import ledger
from engine.mutants import mutants_of_publishing as without
from engine.mutants.bench import Bench
from engine.mutants.conftest import Caught
from engine.mutants.verdicts import hold, require, sound
from lab.support import destination

TWO_STEPS = {"batch-size": 2}


def done_twice(bench: Bench) -> None:
    """The old owner is about to record that step 1 is done, when step 2 already is."""
    bench.build(destination(), **TWO_STEPS)
    bench.overtaken("before-done")
    sound(bench.take())
    hold(bench.numbers(), [1, 2, 3, 4])


def test_without_epoch(caught: Caught) -> None:
    caught(done_twice, without.epoch, "doubled")


def acked_late(bench: Bench) -> None:
    """The old owner is about to ack step 1, when step 2 is acked."""
    bench.build(ledger(), **TWO_STEPS)
    bench.overtaken("after-done")
    require(bench.acked == bench.stored and bench.acked[1] == 4, f"acked backwards: {bench.acked}")


def test_without_ackset(caught: Caught) -> None:
    caught(acked_late, without.ackset, "acked backwards")


def acked_of_another_generation(bench: Bench) -> None:
    """The old owner is about to ack everything, when the source means other data, none of which is delivered."""
    bench.build(ledger(), salt="old")
    with bench.acting({}):
        old = bench.freeze("after-done")
        bench.build(ledger(), salt="new")
        bench.orders(outage=[1])
        require(bench.take().error is not None, "the scenario")
        old.thaw()
    require(bench.acked == bench.stored and bench.acked[1] == 0, f"acked ahead: {bench.acked}")


def test_without_ackgen(caught: Caught) -> None:
    caught(acked_of_another_generation, without.ackgen, "acked ahead")
