"""``make soak N=200 SEED=7``: random kills of random pipelines. Not collected by itself; name the file to pytest.

``SOAK_KILLS`` says how many kills, ``SOAK_SEED`` which; ``SOAK_CASE`` repeats one case as it was printed.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator

import pytest
from engine.matrix.kill_again import soaked
from engine.matrix.kill_cases import Case, combinations
from engine.matrix.kill_destinations import PLACES
from engine.matrix.kill_plan import outcome
from engine.matrix.kill_round import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

AT_ONCE = 24


def chosen(seed: int, number: int) -> list[Case]:
    """Cases with so many kills together, or a few more."""
    dice, every = random.Random(seed), combinations(list(PLACES))
    cases: list[Case] = []
    while sum(len(case.kills) for case in cases) < number:
        cases.append(soaked(dice, dice.choice(every)))
    return cases


def given() -> Iterator[list[Case]]:
    """The cases to run, a process full at a time."""
    if text := os.environ.get("SOAK_CASE"):
        yield [Case.parse(text)]
        return
    seed, number = os.environ.get("SOAK_SEED") or secrets.randbelow(10**6), int(os.environ.get("SOAK_KILLS") or 200)
    print(f"\nmake soak N={number} SEED={seed}", flush=True)
    cases = chosen(int(seed), number)
    for first in range(0, len(cases), AT_ONCE):
        yield cases[first : first + AT_ONCE]


def test_soak(world: World) -> None:
    """Every promise holds wherever a run is killed. Goes on to the end, and names the cases that failed."""
    flaws: list[str] = []
    for number, cases in enumerate(given()):
        found = outcome(world.within(f"soak{number}"), cases, must_die=False)
        killed = sum(len(case.kills) for case in cases)
        print(f"{len(cases)} pipelines, {killed} kills: {len(found)} flaws", flush=True)
        for flaw in found:
            print(f"{flaw}\n  make soak CASE='{flaw.partition(': ')[0]}'", flush=True)
        flaws += found
    assert not flaws, f"{len(flaws)} flaws, printed above"
