"""A decision is final: mutants of prepare, staging and start-up recovery."""

from __future__ import annotations

import shutil

import pytest
from engine.frozen.ledger_plugin import ledger
from engine.mutants import mutants_of_decisions as without
from engine.mutants.bench import Bench
from engine.mutants.conftest import Caught
from engine.mutants.verdicts import decided_once, hold, require, sound
from lab.support import destination

FOLDER = destination("out", "./out/")
TWO_IN_FLIGHT = {"batch-size": 2, "max-in-flight": 2}


def lose_staging(bench: Bench) -> None:
    shutil.rmtree(bench.root / ".conduit" / "staging")


def published_and_changed(bench: Bench) -> None:
    """A crash after publishing; then record 1 is nacked, and record 2 no longer is."""
    bench.build(ledger(), nacks=(2,))
    bench.crashes("after-publish", 2)
    bench.build(ledger(), nacks=(1,))
    sound(bench.take())
    decided_once(bench.ledger(), bench.dead())
    hold(bench.ledger(), [1, 3, 4])
    hold(bench.dead(), [2])


def test_without_prepare(caught: Caught) -> None:
    caught(published_and_changed, without.prepare, "decided twice")


def rebuilt_and_changed(bench: Bench) -> None:
    """A crash between the dead letters and the destination; then staging is lost and the verdicts change."""
    bench.build(ledger(), nacks=(2,))
    bench.crashes("after-delivered")
    lose_staging(bench)
    bench.build(ledger(), nacks=(1,))
    bench.take()
    bench.build(ledger(), nacks=(2,))
    sound(bench.take())
    decided_once(bench.ledger(), bench.dead())
    hold(bench.ledger(), [1, 3, 4])
    hold(bench.dead(), [2])


def test_without_digest(caught: Caught) -> None:
    caught(rebuilt_and_changed, without.digest, "decided twice")


def prepared_and_frozen(bench: Bench) -> None:
    """The old owner has already read the staged bytes; the new one finds them gone, and the verdicts changed."""
    bench.build(ledger())
    with bench.acting({}):
        old = bench.freeze("mid-publish")
    lose_staging(bench)
    bench.build(ledger(), nacks=(1,))
    with bench.acting({("before-publish", 1): old.thaw}):
        bench.take()
    old.thaw()
    bench.build(ledger())
    sound(bench.take())
    decided_once(bench.ledger(), bench.dead())
    hold(bench.ledger(), [1, 2, 3, 4])


def test_without_noreplan(caught: Caught) -> None:
    caught(prepared_and_frozen, without.noreplan, "decided twice")


def published_and_lost(bench: Bench) -> None:
    """Everything is delivered, only the mark is missing: lost staging is not needed, whatever it would contain now."""
    bench.build(FOLDER)
    bench.crashes("after-publish")
    shutil.rmtree(bench.root / "out" / ".staging")
    bench.build(FOLDER, nacks=(1,))
    sound(bench.take())
    hold(bench.parts(), [1, 2, 3, 4])


def test_without_holdsfirst(caught: Caught) -> None:
    caught(published_and_lost, without.holdsfirst, "stuck: delivery.rebuild_differs")


def staged_by_a_zombie(bench: Bench) -> None:
    """The old owner, thawed, stages the step as its own file says, while the new one is about to publish."""
    with pytest.MonkeyPatch.context() as patch, without.in_process(patch):
        bench.build(ledger(), nacks=(1,))
        with bench.acting({}):
            old = bench.freeze("before-stage")
        bench.build(ledger(), nacks=(2,))
        with bench.acting({("before-publish", 2): old.thaw}):
            sound(bench.take())
    decided_once(bench.ledger(), bench.dead())
    hold(bench.ledger(), [1, 3, 4])
    hold(bench.dead(), [2])


def test_without_token(caught: Caught) -> None:
    caught(staged_by_a_zombie, without.token, "decided twice")


def acks_lost(bench: Bench) -> None:
    """A crash between done and the acks, and no new data afterwards."""
    bench.build(ledger())
    bench.crashes("after-done")
    require(bench.acked[1] == 0, "the scenario")
    sound(bench.take())
    require(bench.acked == bench.stored and bench.acked[1] == 4, f"never acked: {bench.acked}")


def test_without_reack(caught: Caught) -> None:
    caught(acks_lost, without.reack, "never acked")


def acks_lost_before_a_step_that_fails(bench: Bench) -> None:
    """Step 1 is done and not acked, step 2 is planned; at the next start it is refused at its first record."""
    bench.build(ledger(), **TWO_IN_FLIGHT)
    bench.crashes("after-done", before={("before-done", 1): ("after-plan", 2)})
    require(bench.acked[1] == 0 and len(bench.state().open_steps) == 1, "the scenario")
    bench.build(ledger(), nacks=(3,), window=(1, 0), **TWO_IN_FLIGHT)
    result = bench.take()
    require(result.error is not None, "the scenario")
    require(bench.acked == bench.stored and bench.acked[1] == 2, f"never acked: {bench.acked}")


def test_without_reackfirst(caught: Caught) -> None:
    caught(acks_lost_before_a_step_that_fails, without.reackfirst, "never acked")
