"""Another engine's binary is recognised, given the same work, run until its records are there, and checked."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from benchmarks import table, whole
from benchmarks.__main__ import main
from benchmarks.against import against, check
from benchmarks.bench import Bench
from benchmarks.other_engines import BENTHOS, CONDUIT, OUTPUT, VECTOR, Engine, expected, ours, recognise
from benchmarks.whole import run_to_its_end, run_until_there
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue

_VERSIONS = [
    (CONDUIT, "v0.14.0 linux/amd64", "v0.14.0"),
    (CONDUIT, "(devel) darwin/arm64", "(devel)"),
    (BENTHOS, "Version: v4.60.0\nDate: unknown", "v4.60.0"),
    (VECTOR, "vector 0.50.0 (x86_64-unknown-linux-gnu 9b4e1d2 2026-07-01)", "0.50.0"),
]
# reads a file of lines, does the work, and stays if told to, as Conduit and Vector do
_ENGINE = """
import json, sys, time
source, opencdc, stays, pause = sys.argv[1], *map(float, sys.argv[2:])
with open(source) as lines, open("out.jsonl", "w") as out:
    for number, line in enumerate(lines):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        document["fullname"] = document.pop("name")
        document["label"] = document["fullname"] + " of " + document["city"]
        del document["note"]
        record = {"position": "x", "operation": "create", "payload": {"before": None, "after": document}}
        out.write(json.dumps(record if opencdc else document) + "\\n")
        if number == 10:
            out.flush()
            time.sleep(pause)
if stays:
    time.sleep(60)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """Make an executable from Python source; return its path."""

    def make(text: str) -> str:
        path = tmp_path / "program"
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return str(path)

    return make


def _lines(*documents: object) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def _plain(name: str = "Some") -> Engine:
    return Engine(name, "1.0", ["true"], lambda root, source: None, ends=True, opencdc=False)


@pytest.mark.parametrize(("kind", "said", "version"), _VERSIONS)
@pytest.mark.parametrize("argument", ["--version", "version"])
def test_an_engine_is_recognised(
    program: Callable[[str], str], kind: str, said: str, version: str, argument: str
) -> None:
    path = program(f"import sys\nif sys.argv[1] == {argument!r}:\n    print({said!r})\n")
    engine = recognise(path)
    assert (engine.name, engine.version, engine.command[0]) == (kind, version, path)


def test_another_program_is_refused_with_what_it_says(program: Callable[[str], str]) -> None:
    with pytest.raises(SystemExit, match=r"none of Vector, Benthos, Conduit: its version is 'it 1\.0'"):
        recognise(program("print('it 1.0')"))


def test_a_missing_program_is_refused() -> None:
    with pytest.raises(SystemExit, match="No such file"):
        recognise("/nowhere/conduit")


@pytest.mark.parametrize("pattern", ["nothing*", "against-conduit", "sizes-20*"])
def test_no_measure_is_one_that_is_unknown_or_needs_more_than_a_pattern(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", pattern])
    with pytest.raises(SystemExit, match=f"there is no measure {re.escape(pattern)}"):
        main()


def test_conduit_and_ours_read_the_same_file_and_nothing_in_it_is_unknown(
    program: Callable[[str], str], tmp_path: Path
) -> None:
    theirs = recognise(program(f"print({_VERSIONS[0][1]!r})"))
    texts: list[bytes] = []
    for engine in (ours(theirs), theirs):
        root = tmp_path / engine.name
        root.mkdir()
        (tmp_path / "in.jsonl").write_text("{}\n")
        engine.write(root, tmp_path / "in.jsonl")
        texts.append((root / "pipelines" / "bench.yaml").read_bytes())
    assert texts[0] == texts[1]
    assert [finding.render() for finding in open_catalogue(Project.find(tmp_path / "ours", {})).findings] == []


@pytest.mark.parametrize("kind", [BENTHOS, VECTOR])
def test_other_engines_get_a_configuration_of_their_own(
    program: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    (said,) = (said for known, said, _ in _VERSIONS if known == kind)
    engine = recognise(program(f"print({said!r})"))
    engine.write(tmp_path, tmp_path / "in.jsonl")
    document = YAML(typ="safe").load(tmp_path / engine.command[-1])
    assert str(tmp_path / "in.jsonl") in json.dumps(document)
    assert OUTPUT in json.dumps(document)


def test_a_run_ends_with_the_last_write_and_the_engine_is_told_to_stop(
    program: Callable[[str], str], tmp_path: Path
) -> None:
    path = program(
        "import time\n"
        "with open('out.jsonl', 'w') as out:\n"
        "    for pause in 0.5, 60:\n"
        "        print('x', file=out, flush=True)\n"
        "        time.sleep(pause)\n"
    )
    began = time.monotonic()
    taken = run_until_there([path], tmp_path, tmp_path / OUTPUT, 2)
    assert 0.5 <= taken.seconds < time.monotonic() - began < 30


def test_an_engine_that_ends_before_its_work_is_an_error_with_its_last_words(
    program: Callable[[str], str], tmp_path: Path
) -> None:
    path = program("print('cannot go on')\nraise SystemExit(1)")
    with pytest.raises(RuntimeError, match=r"(?s)0 of 2 records.*cannot go on"):
        run_until_there([path], tmp_path, tmp_path / OUTPUT, 2)
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1.*cannot go on"):
        run_to_its_end([path], tmp_path)


def test_an_output_that_no_longer_grows_is_an_error(
    program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_PATIENCE", 6.0)  # a busy machine takes seconds to start it
    path = program("import time\nopen('out.jsonl', 'w').write('x\\n')\ntime.sleep(60)")
    with pytest.raises(RuntimeError, match="1 of 2 records"):
        run_until_there([path], tmp_path, tmp_path / OUTPUT, 2)


def test_what_was_written_is_compared_with_what_the_work_makes_of_the_input(tmp_path: Path) -> None:
    output = tmp_path / OUTPUT
    output.write_text(_lines(expected(0), expected(1)))
    check(_plain(), output, 2)
    output.write_text(_lines(expected(0), {**expected(1), "label": "another"}))
    with pytest.raises(AssertionError, match="another"):
        check(_plain(), output, 2)
    output.write_text(_lines(expected(0), expected(0)))
    with pytest.raises(AssertionError, match="twice"):
        check(_plain(), output, 2)


def test_a_record_is_one_that_was_created(tmp_path: Path) -> None:
    output, engine = tmp_path / OUTPUT, replace(_plain(), opencdc=True)
    record = {"position": "eA==", "operation": "create", "payload": {"before": None, "after": expected(0)}}
    output.write_text(_lines(record))
    check(engine, output, 1)
    output.write_text(_lines({**record, "operation": "update"}))
    with pytest.raises(ValueError, match="not a created record"):
        check(engine, output, 1)


@pytest.mark.slow
def test_both_engines_in_turn_and_what_a_further_record_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[str], str]
) -> None:
    path = program(_ENGINE)

    def engine(name: str, stays: bool, pause: float) -> Engine:
        arguments = ["1", str(int(stays)), str(pause)]

        def write(root: Path, source: Path) -> None:
            (root / "run").write_text(f"#!/bin/sh\nexec {path} {source} {' '.join(arguments)}\n")
            (root / "run").chmod(0o755)

        return Engine(name, "1.0", ["./run"], write, ends=not stays, opencdc=True)

    monkeypatch.setattr("benchmarks.against.ours", lambda beside: engine("ours", False, 0.0))
    monkeypatch.setattr("benchmarks.against._make_archive", lambda: None)
    bench = Bench(tmp_path / "work", records=10_000, rounds=1, steps=1, engines={"It": engine("It", True, 0.4)})
    bench.work.mkdir()
    result = against(bench, "It")
    small, large, further = result["rows"]
    assert result["records"] == [1_000, 5_000]
    assert small["theirs"] > small["ours"] > 0
    assert small["ratio"] > 1
    assert large["theirs"] > 0.4
    assert set(further) == set(small)
    about = {"title": "beside It", "at": "2026-01-01T00:00:00", "machine": {"cpus": 2}}
    text = table.markdown({"against-it": {**about, **result}})
    assert text.count("| It 1.0 |") == 3
