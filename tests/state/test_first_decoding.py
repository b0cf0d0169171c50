"""Pipelines of one process begin at the same moment, each in a thread: they decode the store's content together."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec

ROOT = Path(__file__).parents[2]

PROCESSES = 12
SCRIPT = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
from conduit_dagster.state.steps import Decision, Plan, encode
kinds = [(Plan, Plan(1, 1, [])), (Decision, Decision([], {}, [], ""))]
texts = [(kind, encode(value)) for kind, value in kinds]
barrier = threading.Barrier(8)

def decode():
    barrier.wait()
    for kind, text in texts:
        msgspec.json.decode(text, type=kind)

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_decode_for_the_first_time_together_do_not_end_the_process() -> None:
    """In one process of four msgspec failed, if it had not seen the types before."""
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda _: subprocess.run([sys.executable, "-c", SCRIPT], check=False), range(PROCESSES))
        assert [run.returncode for run in runs] == [0] * PROCESSES


def test_every_type_that_is_decoded_is_learned() -> None:
    """The script above knows two of them; this checks the code of all."""
    decoded: set[type] = set()
    learned: set[type] = set()
    for path in sorted((ROOT / "conduit_dagster").rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            decoded |= {one for name in _decoded(call) for one in _structs(_meant(path, name))}
            learned |= {one for name in _learned(call) for one in _structs(_meant(path, name))}
    assert len(decoded) > 15
    assert decoded - learned == set()


def _decoded(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    if name.endswith(".decode"):
        # a lower-case name is a parameter, as for a column's kind in connectors/postgres
        yield from (
            ast.unparse(one.value) for one in call.keywords if one.arg == "type" and not _is_parameter(one.value)
        )
    if name == "msgspec.convert" or (name == "decode" and len(call.args) == 2):  # that of state/steps.py
        yield ast.unparse(call.args[1])


def _learned(call: ast.Call) -> Iterator[str]:
    # a module's own decoder is made while it is imported
    if ast.unparse(call.func) == "learn" or (ast.unparse(call.func).endswith(".Decoder") and not call.keywords):
        yield from (ast.unparse(one) for one in call.args if not _is_parameter(one))


def _is_parameter(name: ast.expr) -> bool:
    return isinstance(name, ast.Name) and name.id.islower()


def _meant(path: Path, name: str) -> object:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return eval(name, vars(module))  # names of our own code


def _structs(kind: object, known: frozenset[object] = frozenset()) -> set[type[msgspec.Struct]]:
    """The types of ours within a type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in known:
        inner = get_type_hints(kind).values()
        return {kind}.union(*(_structs(one, known | {kind}) for one in inner))
    return set().union(*(_structs(one, known) for one in get_args(kind)))
