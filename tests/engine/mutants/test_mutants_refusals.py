"""Refusals and failures of destinations: mutants of children, claims and dead letters."""

from __future__ import annotations

from engine.frozen.ledger_plugin import ledger
from engine.mutants import mutants_of_publishing as without
from engine.mutants.bench import Bench
from engine.mutants.conftest import Caught
from engine.mutants.verdicts import decided_once, hold, require, sound


def resent(bench: Bench, at: str) -> None:
    """The old owner publishes the whole delivery after the new one has found it split."""
    bench.build(ledger())
    with bench.acting({}):
        old = bench.freeze("mid-publish")
        bench.orders(bulk=[1])
        require(bench.take().error is not None, "the scenario")
        bench.orders()
    with bench.acting({(at, 1): old.thaw}):
        sound(bench.take())
    hold(bench.ledger(), [1, 2, 3, 4])


def whole_before_the_claim(bench: Bench) -> None:
    """It succeeds: the claim finds it delivered, and no child is sent."""
    resent(bench, "before-claim")


def whole_before_the_first_child(bench: Bench) -> None:
    """It finds the claim."""
    resent(bench, "before-child")


def test_without_claim(caught: Caught) -> None:
    caught(whole_before_the_first_child, without.claim, "doubled")


def test_with_a_claim_that_nobody_heeds(caught: Caught) -> None:
    caught(whole_before_the_claim, without.claim_heeded, "doubled")


def one_at_a_time(bench: Bench) -> None:
    """A delivery that failed without naming a record: the next owner sends each record by itself."""
    bench.build(ledger(), redelivery="one-at-a-time")
    bench.orders(bulk=[1])
    require(bench.take().error is not None, "the scenario")
    bench.orders()


def rejected_meanwhile(bench: Bench) -> None:
    """The old owner is sending record 1 alone; for the new one it is refused."""
    one_at_a_time(bench)
    with bench.acting({}):
        old = bench.freeze("mid-publish")
        bench.orders(reject=[1])
        sound(bench.take())
        old.thaw()
    bench.orders()
    sound(bench.take())
    decided_once(bench.ledger(), bench.dead())
    hold(bench.ledger(), [2, 3, 4])
    hold(bench.dead(), [1])


def test_without_kidclaim(caught: Caught) -> None:
    caught(rejected_meanwhile, without.kidclaim, "decided twice")


def delivered_meanwhile(bench: Bench) -> None:
    """The old owner delivers record 1 alone, right before the new one, for which it is refused, claims it as nacked."""
    one_at_a_time(bench)
    with bench.acting({}):
        old = bench.freeze("mid-publish")
        bench.orders(named=[1, 3])
    # the second claim of the run: the first one is that of the whole delivery
    with bench.acting({("before-claim", 2): old.thaw}):
        sound(bench.take())
    decided_once(bench.ledger(), bench.dead())
    hold(bench.ledger(), [1, 2, 4])
    hold(bench.dead(), [3])


def test_without_kidheeded(caught: Caught) -> None:
    caught(delivered_meanwhile, without.kidheeded, "decided twice")


def rejected_by_both(bench: Bench) -> None:
    bench.build(ledger("out"), ledger("more"))
    bench.orders(reject=[2])
    sound(bench.take())
    hold(bench.ledger("out"), [1, 3, 4])
    hold(bench.ledger("more"), [1, 3, 4])
    hold(bench.dead(), [2])


def test_without_dlqonce(caught: Caught) -> None:
    """Its second dead letter has the same name as the first, and the step never ends."""
    caught(rejected_by_both, without.dlqonce, "stuck")


def nacked_and_rejected(bench: Bench) -> None:
    """Record 2 is nacked by a processor, the step's first one by the destination."""
    bench.build(ledger(), nacks=(2,))
    bench.orders(reject=[1])
    sound(bench.take())
    hold(bench.ledger(), [3, 4])
    hold(bench.dead(), [2, 1])


def test_without_dlqkey(caught: Caught) -> None:
    """The two dead letters have one name, and the step never ends."""
    caught(nacked_and_rejected, without.dlqkey, "stuck")


def crashed_after_the_first(bench: Bench) -> None:
    """Dead letters are published first."""
    bench.build(ledger(), nacks=(2,))
    bench.crashes("after-delivered")
    require(bench.dead() == [2] and bench.ledger() == [], "order")
    sound(bench.take())
    hold(bench.ledger(), [1, 3, 4])


def test_without_dlqfirst(caught: Caught) -> None:
    """Marked (order): without it nothing breaks in the model."""
    caught(crashed_after_the_first, without.dlqlast, "order")


POST = '''
import json
from pathlib import Path

from conduit_dagster.sdk import ConnectorSettings, DirectDestination, Sender


class Post(DirectDestination):
    """Appends each record to ``ROOT/post.jsonl``; record 3 fails, and what names it is lost."""

    name = "post"

    def sender(self, task):
        return Posting(Path(self.context.resolve("post.jsonl")))


class Posting(Sender):
    def __init__(self, file):
        self._file = file

    def send(self, records, first):
        with self._file.open("a") as file:
            for record in records:
                if record.after["i"] == 3:
                    raise RuntimeError("something is wrong")
                file.write(json.dumps(record.after) + "\\n")
'''


def half_sent(bench: Bench) -> None:
    """The rest of it is dropped, counted and named."""
    bench.write("plugins/post.py", [POST])
    bench.build({"id": "out", "type": "destination", "plugin": "post"}, strategy="at-most-once")
    result = bench.take()
    require(result.error is not None and "are dropped" in result.error.message, "the scenario")
    sound(bench.take())
    hold(bench.numbers("post.jsonl"), [1, 2])


def test_without_amonoresend(caught: Caught) -> None:
    caught(half_sent, without.amonoresend, "doubled")
