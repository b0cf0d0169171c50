"""``init connector`` and ``init processor``: the generated code runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from lab.operating import error, result
from lab.support import Lab, processor, queue, source

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.mark.slow
def test_what_is_made_runs_in_a_real_pipeline(run: Any, lab: Lab) -> None:
    for kind, name in (("connector", "paper.box"), ("processor", "cap-it")):
        made = result(run("init", kind, name, "--json"))
        assert made["file"] == str(lab.root / "plugins" / f"{name.translate({46: 95, 45: 95})}.py")
        assert run(*made["next"][0].split()[1:]).code == 0
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", made["next"][1].split()[1]]
        tested = subprocess.run(command, cwd=lab.root, capture_output=True, text=True, check=False)
        assert tested.returncode == 0 and " passed" in tested.stdout, tested.stdout
    (lab.root / "in").mkdir()
    for number, amount in ((1, 5), (2, 500), (10, None)):
        (lab.root / "in" / f"{number}.json").write_text(json.dumps({"i": number, "amount": amount}))
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "paper.box", "settings": {"path": "./in"}},
            {"id": "out", "type": "destination", "plugin": "paper.box", "settings": {"path": "./out"}},
        ],
        processors=[processor("cap", "cap-it", limit="100")],
        **{"dead-letter-queue": queue()},
    )
    assert lab.run().error is None
    [written] = (lab.root / "out").iterdir()
    assert json.loads(written.read_text()) == [{"i": 1, "amount": 5}, {"i": 2, "amount": 100}]
    assert lab.run().progress.read == 0
    lab.write("in.jsonl", ["raw"])
    out = {"id": "out", "type": "destination", "plugin": "paper.box", "settings": {"path": "./out"}}
    lab.pipeline(connectors=[source(), out], processors=[processor("cap", "cap-it")], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    assert [node for node, *_ in lab.letters()] == ["p:cap"]


def test_what_to_make_is_found_in_spite_of_a_typing_mistake(run: Any, lab: Lab) -> None:
    assert error(run("init", "conector", "cap", "--json"))["fix"] == "init connector cap"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("processor", "Cap It"), "usage.plugin_name"),
        (("processor", "../x"), "usage.plugin_name"),
        (("thing", "cap"), "usage.init"),
        (("connector",), "usage.init"),
        (("processor",), "usage.init"),
        (("processor", "cap"), "usage.file_exists"),
    ],
)
def test_what_can_not_be_made(run: Any, lab: Lab, words: tuple[str, ...], code: str) -> None:
    (lab.root / "plugins").mkdir(exist_ok=True)
    (lab.root / "plugins" / "cap.py").write_text("# mine")
    assert error(run("init", *words, "--json"))["code"] == code
    assert not (lab.root / "connector").exists()
    assert (lab.root / "plugins" / "cap.py").read_text() == "# mine"
