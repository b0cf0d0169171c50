"""No function, method or filter makes an expression grow or run without bound, alone or with itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from lab.choice import WHOLE

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.gotemplate.template_functions import TABLE
from conduit_dagster.expressions.python.expression_functions import FUNCTIONS, METHODS

Evaluate = Callable[[str, str], str]
LARGEST = 100_000_000
"""Bytes of JSON that a result of the child's record (6 MB) may have."""


@pytest.fixture(scope="module")
def evaluate() -> Iterator[Evaluate]:
    """Evaluate in a fork of a child process, with 768 MB of memory and 8 s of processor time."""
    program = Path(__file__).with_name("bounded_child.py")
    child = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    requests, answers = child.stdin, child.stdout

    def ask(kind: str, text: str) -> str:
        print(json.dumps([kind, text]), file=requests, flush=True)
        return json.loads(answers.readline())[0]

    yield ask
    requests.close()
    assert child.wait(timeout=90) == 0
    answers.close()


def check(evaluate: Evaluate, kind: str, text: str) -> None:
    """The evaluation ends within its limits, with a result of bounded size or the record's own error."""
    outcome = evaluate(kind, text)
    word = outcome.split()[0]
    assert word in ("refused", "made", "failed"), f"{outcome}: {text[:200]}"
    assert word != "made" or int(outcome.split()[1]) <= LARGEST, f"{outcome}: {text[:200]}"


def filled(part: str, separator: str = ", ", room: int = limits.EXPRESSION_CHARS - 20) -> str:
    """The part as often as an expression has room for."""
    return separator.join([part] * (room // len(part + separator)))


def chosen(of: Sequence[str], name: str, share: int = 8) -> Sequence[str]:
    """An eighth of them, or another share, different for each name; all with ``make matrix``, some 15 minutes more."""
    return of if WHOLE else of[sum(map(ord, name)) % share :: share]


ARGUMENTS = ("", "after.a", "after.needle", "after.many, 'x'", "'', after.q", "'a', after.ab", "after.w", "after.docs")
PARTS = ("after", "after.q", "after.lists", "after.n", "after.l")
RECEIVERS = ("after.a", "after.wide", "','")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_methods(evaluate: Evaluate, name: str) -> None:
    """Each with all sorts of arguments: chained, many at once, in a loop, and nested in ``str``."""
    for receiver in RECEIVERS:
        for arguments in chosen(ARGUMENTS, name):
            call = f".{name}({arguments})"
            check(evaluate, "expression", receiver + call * 2)
    for arguments in chosen(("", "after.a", "'', after.q"), name, 3):
        call = f".{name}({arguments})"
        for receiver in ("after.q", "after.docs[0]"):
            check(evaluate, "expression", "[" + filled(receiver + call) + "]")
            check(evaluate, "expression", f"[{receiver}{call} for x in after.l]")
            check(evaluate, "expression", "str([" * 10 + receiver + call + "])" * 10)
            check(evaluate, "expression", f"[str([{receiver}{call}, after]) for x in after.l]")
    check(evaluate, "expression", f"['{'ab' * 1900}'.{name}(x) for x in after.w]")
    check(evaluate, "expression", f"[x.{name}('b') for x in after.w]")
    check(evaluate, "expression", f"[[{filled(f'x.{name}()', room=3000)}] for x in after.docs]")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, function in FUNCTIONS.items() if function.most])
def test_functions(evaluate: Evaluate, name: str) -> None:
    """Each on all sorts of values: nested, many at once, and in a loop."""
    arguments = {"isinstance": "{}, str", "regex": "'([ab]*a[ab]{{30}})+c', {}"}.get(name, "{}")
    parts = ("after", "after.q", "after.docs", "after.lists", "after.n", "after.l", "[after, after]", "after.control")
    for part in chosen(parts, name):
        call = f"{name}({arguments.format(part)})"
        for text in (
            call,
            "[" + filled(call) + "]",
            "str([" + filled(call) + "])",
            f"[{call} for x in after.l]",
            f"sorted({call} for x in after.l)",
            f"f'{filled('{' + call + '}', '')}'",
            f"[{call} for x in {call}]",
            f"hash([{call}, {call}, {call}])",
        ):
            check(evaluate, "expression", text)
    nested = "after.q"
    for _ in range(20):
        nested = f"{name}({arguments.format(f'[{nested}]')})"
        check(evaluate, "expression", nested)


SHAPES = [
    "[after for x in after.docs]",
    "[after.docs for x in after.docs]",
    "[x if x.id > 5 else after for x in after.docs]",
    "[x.nothing or after.docs for x in after.docs]",
    "[[x, after] for x in after.docs]",
    "[{'a': x, 'b': [after.docs, 1]} for x in after.docs]",
    "[after.docs[x] for x in after.l]",
    "[after.get('docs') for x in after.l]",
    "[max([after, after]) for x in after.l]",
    "[after.lists[:] for x in after.l]",
    "sorted([after, after] for x in after.docs)",
    f"[[{filled('x', ',')}] for x in after.docs]",
    f"[{{{filled(repr('k') + ': x', ',', 3900)}}} for x in after.docs]",
    f"[{filled('after', ',')}]",
    f"[{filled('after.docs', ',')}]",
    f"{{{filled(repr('k') + ': after', ', ')}}}",
    f"str([{filled('after', ',')}])",
    f"hash([{filled('after', ',')}])",
    f"f'{filled('{after}', '')}'",
    f"[{filled('str(after)', ',')}]",
    f"[{filled('after.l[:]', ',')}]",
    filled("after.docs", " + "),
    f"str({filled('after.docs', ' + ')})",
    f"[{filled('after.q + after.q', ',')}]",
    f"[x for x in {filled('after.docs', ' + ')}]",
    f"[{filled('[x for x in after.l]', ',')}]",
    f"[x in [{filled(repr('k' * 8))}] for x in after.l]",
    f"['{'ab' * 1900}'.count(x) for x in after.w]",
    f"[x in '{'ab' * 1900}' for x in after.w]",
    "[after.n // after.m for x in after.l]",
    "[after.n % after.m for x in after.l]",
    "[after.n * after.n for x in after.l]",
    "[x for x in after.l if after.docs == after.docs]",
    "[x for x in after.lists if x in after.lists]",
    "sorted(after.lists)",
    "sorted(after.docs)",
    "[1 for x in after.l if sorted(after.lists)]",
    "[1 for x in after.l if max(after.lists)]",
    "any(min(after.lists, after.lists) == x for x in after.l)",
    "max(after.lists)",
    "after.docs == after.docs",
]


@pytest.mark.parametrize("text", SHAPES, ids=lambda text: str(text)[:50])
def test_what_repeats_the_record_is_bounded(evaluate: Evaluate, text: str) -> None:
    check(evaluate, "expression", text)
    check(evaluate, "condition", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_template_functions(evaluate: Evaluate, name: str) -> None:
    """Each on all sorts of values: chained with itself and with those that escape, and many at once."""
    least, most = TABLE[name].least, TABLE[name].most
    first = {"printf": '"%q%s%v"', "replace": '"" .Payload.After.q', "index": ".Payload.After"}.get(name, "")
    count = {"printf": 3, "replace": 1}.get(name, max(1, least))
    for field in ("", *chosen((".q", ".control"), name, 2)):
        part = f".Payload.After{field}"
        call = f"{name} {first} {' '.join([part] * count)}"
        check(evaluate, "template", f"{{{{ {call} }}}}")
        if field:
            check(evaluate, "template", f"{{{{ {call} }}}}" * (limits.TEMPLATE_CHARS // len(f"{{{{ {call} }}}}")))
        for escape in (name, *chosen(("quote", "toJson", 'printf "%q"'), name + field, 3)):
            for depth in (5, 45) if field else (5,):
                check(evaluate, "template", f"{{{{ {call}{f' | {escape}' * depth} }}}}")
        if most > 200 and field:
            values = " ".join([part] * 250)
            form = '"' + "%v" * 250 + '"' if name == "printf" else ""
            check(evaluate, "template", f"{{{{ {name} {form} {values} }}}}")


TEMPLATES = [
    "{{ .Payload.After }}" * 3000,
    "{{ toJson . }}" * 4000,
    "x{{ .Payload.After.q | quote | quote }}" * 1500,
    "{{ " + 'printf "%q" (' * 22 + ".Payload.After.q" + ")" * 22 + " }}",
    "{{ .Payload.After.q" + " | quote" * 24 + " }}",
    "{{ .Payload.After.q" + " | toJson" * 26 + " }}",
    '{{ "\\""' + " | quote" * 28 + " }}",
    "{{ default .Payload.After (quote .Payload.After.q | quote | quote | quote | quote | quote) | quote }}",
    "{{ .Payload.After.a" + " | quote" * 45 + " }}",
    '{{ printf "%100v" .Payload.After }}',
]


@pytest.mark.parametrize("text", TEMPLATES, ids=lambda text: str(text)[:50])
def test_what_a_template_repeats_is_bounded(evaluate: Evaluate, text: str) -> None:
    check(evaluate, "template", text)
    check(evaluate, "condition", text)
