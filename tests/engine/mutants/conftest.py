"""Proof that a mutant is caught: one scenario, with the real engine and with one of its rules removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine.mutants.bench import Bench
from engine.mutants.verdicts import Broken
from pyspark.sql import SparkSession

Scenario = Callable[[Bench], None]
Mutant = Callable[[pytest.MonkeyPatch], None]
Caught = Callable[[Scenario, Mutant, str], None]


@pytest.fixture
def caught(tmp_path: Path, spark: SparkSession) -> Caught:
    """Run a scenario that must hold with the real engine, and must break in the given way with the mutant."""

    def play(scenario: Scenario, name: str) -> None:
        (tmp_path / name).mkdir()
        bench = Bench(tmp_path / name, spark).set_up()
        try:
            scenario(bench)
        finally:
            bench.release()

    def run(scenario: Scenario, mutant: Mutant, breaks: str) -> None:
        play(scenario, "real")
        with pytest.MonkeyPatch.context() as patch:
            mutant(patch)
            with pytest.raises(Broken, match=f"^{breaks}"):
                play(scenario, "mutant")

    return run
