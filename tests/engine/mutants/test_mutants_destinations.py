"""What destinations guarantee: mutants of hashes, bases and fsyncs."""

from __future__ import annotations

import pytest
from engine.frozen.ledger_plugin import ledger
from engine.mutants import mutants_of_destinations as without
from engine.mutants.bench import Bench
from engine.mutants.conftest import Caught, Mutant, Scenario
from engine.mutants.durable import Synced, below
from engine.mutants.mutants_of_decisions import in_process
from engine.mutants.verdicts import Watch, hold, sound
from lab.support import destination

FOLDER = destination("out", "./out/")


def half_written(bench: Bench) -> None:
    """A crash in the middle of one ordered file."""
    bench.build(destination())
    bench.crashes("mid-publish")
    sound(bench.take())
    hold(bench.numbers(), [1, 2, 3, 4])


def half_written_by_a_zombie(bench: Bench) -> None:
    """The old owner stands in the middle of one ordered file, and continues after the new one has written two steps."""
    bench.build(destination(), **{"batch-size": 2})
    bench.overtaken("mid-publish")
    hold(bench.numbers(), [1, 2, 3, 4])
    sound(bench.take())


@pytest.mark.parametrize(("scenario", "breaks"), [(half_written, "doubled"), (half_written_by_a_zombie, "stuck")])
def test_without_positioned_writes(caught: Caught, scenario: Scenario, breaks: str) -> None:
    caught(scenario, without.append, breaks)


def late_write(bench: Bench) -> None:
    """At-most-once: the old owner stands in the middle of step 1, and the new one continues with step 2."""
    bench.build(destination(), strategy="at-most-once", **{"batch-size": 2})
    bench.overtaken("mid-publish")
    hold(bench.numbers(), [1, 2, 3, 4])
    sound(bench.take())


def test_without_amobase(caught: Caught) -> None:
    caught(late_write, without.amobase, "lost")


def published_unmarked(bench: Bench) -> None:
    """A crash between publishing and its mark."""
    bench.build(FOLDER)
    bench.crashes("after-publish")
    sound(bench.take())
    hold(bench.parts(), [1, 2, 3, 4])


def test_without_hash_in_a_folder(caught: Caught) -> None:
    caught(published_unmarked, without.folder_hash, "doubled")


def read_anew(bench: Bench) -> None:
    """The source now means other data: the same range is another delivery."""
    bench.build(ledger(), salt="old")
    sound(bench.take())
    bench.build(ledger(), salt="new")
    sound(bench.take())
    hold(bench.ledger(), [1, 2, 3, 4, 1, 2, 3, 4])


def test_without_generation(caught: Caught) -> None:
    caught(read_anew, without.gen, "lost")


def synced_in_time(bench: Bench) -> None:
    """No power is cut here: what was synced is compared with what exists when the store commits."""
    synced = Synced()
    bench.build(destination("one"), FOLDER, nacks=(2,))
    staging = (bench.root / ".conduit" / "staging" / "p", bench.root / "out" / ".staging" / "p" / "out")
    files = [bench.root / "one.jsonl", bench.root / "dead.jsonl", bench.root / "out"]
    prepared = Watch(lambda: synced.require(*[path for folder in staging for path in below(folder)]))
    done = Watch(lambda: synced.require(*files, *[p for s in (bench.root / "out").glob("step=*") for p in below(s)]))
    acts = {("before-prepare", 1): prepared, ("before-done", 1): done}
    with pytest.MonkeyPatch.context() as patch, in_process(patch), synced.watching(), bench.acting(acts):
        sound(bench.take())
    prepared.report()
    done.report()


@pytest.mark.parametrize("mutant", [without.staging_sync, without.staged_sync, without.published_sync])
def test_without_fsync(caught: Caught, mutant: Mutant) -> None:
    caught(synced_in_time, mutant, "not durable")
