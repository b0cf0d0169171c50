"""How results are reported and signals counted, without any pipeline."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import cast

import pytest
import typer
from rich.console import Console

from conduit_dagster.cli.progress import amount, finished, print_traces
from conduit_dagster.cli.running import CommandSignals
from conduit_dagster.cli.terminal import console, print_table
from conduit_dagster.cli.verb import Outcome, failure, perform
from conduit_dagster.engine.report import RunProgress, RunResult
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.errors import TransientError


def _failed() -> RunResult:
    error = TransientError("it broke", code="x.y", node="p:out", place="./out", fix="mend it")
    error.add_note("the task's own trace")
    error.__cause__ = ValueError("deep down")
    progress = RunProgress(read=1_000, filtered=20, nacked=10, dead_lettered=10, delivered={"out": 970})
    return RunResult("p", "degraded", "", error, progress)


def test_a_failed_pipeline_is_exit_code_1_and_its_error_the_envelopes() -> None:
    good = RunResult("good", "stopped", "system", None, RunProgress())
    outcome = finished([good, _failed()], [], None)
    assert outcome.exit == 1
    assert outcome.error is not None
    assert outcome.error.code == "x.y"
    assert outcome.summary == "1 of 2 pipelines failed: p"
    assert outcome.result["pipelines"][1] == _failed().as_json()


def test_a_forced_stop_has_the_signals_exit_code() -> None:
    assert finished([_failed()], [], 143).exit == 143


def test_the_summary_says_counts_error_place_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = finished([_failed()], [], None)
    assert outcome.show is not None
    outcome.show(console())
    told = capsys.readouterr().out
    assert "1,000 read, 990 acked (of them 20 filtered), 10 nacked, 10 dead-lettered" in told
    assert "out 970" in told
    for words in ("error x.y: it broke", "node:   p:out", "place:  ./out", "fix:    mend it"):
        assert words in told


def test_verbose_shows_notes_and_causes(capsys: pytest.CaptureFixture[str]) -> None:
    print_traces([_failed()])
    told = capsys.readouterr()
    assert "the task's own trace" in told.err
    assert "deep down" in told.err
    assert not told.out


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("environment.java_missing", 3), ("state.version", 3), ("usage.unknown_plugin", 2), ("file.missing", 1)],
)
def test_the_exit_code_follows_the_errors_code(code: str, exit_code: int) -> None:
    assert failure(TransientError("x", code=code)).exit == exit_code


def test_the_first_signal_asks_and_the_second_forces() -> None:
    stop, said = StopFlag(), []
    signals = CommandSignals(stop, said.append)
    signals.deliver()
    assert not stop.requested
    signals.note(signal.SIGTERM)
    signals.deliver()
    assert (stop.requested, stop.forced, stop.reason, signals.forced_exit) == (True, False, "system", None)
    signals.note(signal.SIGINT)
    signals.deliver()
    assert (stop.forced, signals.forced_exit) == (True, 130)
    assert len(said) == 2


def test_a_table_stays_readable_on_a_narrow_terminal() -> None:
    narrow = Console(file=io.StringIO(), width=30, force_terminal=True, color_system=None)
    print_table(narrow, ("id", "status", "file"), [("orders", "recovering, restart 2", "pipelines/" + "x" * 40)])
    lines = cast("io.StringIO", narrow.file).getvalue().splitlines()
    assert lines[1].startswith("orders   recovering, restart 2   pipelines/xxx")
    assert len(lines[1]) < 60


def test_an_output_that_cannot_be_written_is_one_clear_error(shell, failed: Path) -> None:
    for words in (("pipelines", "list"), ("pipelines", "list", "--json"), ("--help",)):
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            process = shell.spawn(*words, stdout=full)
            _, told = process.communicate(timeout=120)
        assert process.returncode == 3
        assert told.startswith("error environment.output: the output can't be written: No space left on device\n")
        assert "Traceback" not in told


def test_a_command_without_stdout_does_its_work(shell, failed: Path) -> None:
    process = shell.spawn("pipelines", "list", stdout=None, preexec_fn=lambda: os.close(1))
    _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (0, "")


def test_characters_that_the_terminal_cannot_show_are_escaped(shell, project: Path, pipeline) -> None:
    (project / "pipelines" / "snow.yaml").write_text(pipeline("snow", "description: ☃"))
    process = shell.spawn("pipelines", "describe", "snow", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    told, wrong = process.communicate(timeout=120)
    assert (process.returncode, wrong) == (0, "")
    assert "\\u2603" in told


def test_an_amount_of_one_is_no_plural() -> None:
    assert [amount(number, "records") for number in (0, 1, 1_200)] == ["0 records", "1 record", "1,200 records"]
    assert (amount(1, "bytes"), amount(1_500_000, "bytes")) == ("1 B", "1.5 MB")


def test_a_verb_that_was_interrupted_says_what_that_means(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> Outcome:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        perform("dlq replay", False, work)
    assert ended.value.exit_code == 130
    told = capsys.readouterr().err
    assert "dlq replay was interrupted before its end" in told
    assert "what it changed by then stays" in told
