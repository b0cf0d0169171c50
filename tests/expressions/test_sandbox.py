"""Expressions reach the record and nothing else, and neither block nor grow."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_dagster.expressions import Clock, ExpressionError, compile_condition, compile_expression, compile_template
from conduit_dagster.record import Record

CLOCK = Clock()
LARGE = {
    "s": "a" * 1_000_000,
    "l": list(range(100_000)),
    "n": 10**4000,
    "t": "x",
    "nested": [[1] * 1000] * 1000,
}
RECORD = Record(1, {}, LARGE)

REFUSED = [
    "().__class__",
    "().__class__.__bases__[0].__subclasses__()",
    "''.__class__.__mro__",
    "after.__class__",
    "after.__init__.__globals__",
    "(after.x).__dict__",
    "len.__self__",
    "len.__self__.eval('1')",
    "__import__('os').system('id')",
    "__builtins__",
    "_getattr_(after, 'x')",
    "getattr(after, '__class__')",
    "setattr(after, 'x', 1)",
    "hasattr(after, 'x')",
    "type(after)",
    "type('X', (), {})",
    "eval('1')",
    "exec('1')",
    "compile('1', '', 'eval')",
    "open('/etc/passwd')",
    "globals()",
    "locals()",
    "vars()",
    "dir(after)",
    "print(1)",
    "input()",
    "breakpoint()",
    "help()",
    "id(after)",
    "super()",
    "object()",
    "range(10**9)",
    "bytes(10**9)",
    "bytearray(10**9)",
    "memoryview(b'')",
    "bytes.fromhex('41')",
    "str.format('{0.__class__}', after)",
    "'{0.__class__}'.format(after)",
    "'{0.__class__}'.format_map(after)",
    "after.name.format(after)",
    "'a'.center(10**9)",
    "'a'.ljust(10**9)",
    "'a'.rjust(10**9)",
    "'a'.zfill(10**9)",
    "'\\t'.expandtabs(10**9)",
    "'a'.encode()",
    "'a'.translate({97: 'b' * 9})",
    "str.maketrans('a', 'b')",
    "str.join(',', after.l)",
    "str",
    "[str][0](1)",
    "(len)(after) if len else 1",
    "(lambda: 1)()",
    "lambda: 1",
    "(x := 1)",
    "[y := 1, y]",
    "[x async for x in after.l]",
    "await after",
    "(yield)",
    "(yield from after)",
    "*after",
    "[*after.l]",
    "{**after}",
    "len(*after.l)",
    "min(**after)",
    "{1, 2}",
    "{x for x in after.l}",
    "{x: x for x in after.l}",
    "{1: 2}",
    "2 ** 99",
    "after.n ** after.n",
    "1 << 10**9",
    "1 >> 1",
    "after | after",
    "1 & 1",
    "1 ^ 1",
    "~1",
    "after @ after",
    "(x for x in after.l)",
    "(x for x in after.l).gi_frame",
    "[x for x in after.l].__class__",
    "(x for x in after.l).gi_frame.f_back.f_globals",
    "after.gi_frame",
    "after.f_globals",
    "after.x.cr_frame",
    "len(x for x in after.l)",
    "[(x for x in after.l)]",
    "min((x for x in after.l), 1)",
    "[y for x in after.l for y in after.l]",
    "[[y for y in after.l] for x in after.l]",
    "[x for x in [y for y in after.l]]",
    "[any(y for y in after.l) for x in after.l]",
    "any(any(y for y in x) for x in after.l)",
    "[after for after in after.l]",
    "[len for len in after.l]",
    "[_x for _x in after.l]",
    "[a for a, b in after.l]",
    "[after.x for after.x in after.l]",
    "[x for x in after.l] + x",
    "charge(after)",
    "record.after",
    "item_x",
    "method_upper('a')",
    "f'{after!r}'",
    "f'{after:>1000000000}'",
    "f'{after.x:{after.n}}'",
    "f'{().__class__}'",
    "f'{(lambda: 1)()}'",
    "f'{__import__}'",
    "b'raw'",
    "1j",
    "...",
    "1e999",
    "9" * 200,
    "9" * 5000,
    "'" + "a" * 5000 + "'",
    "(" * 300 + "1" + ")" * 300,
    "-" * 4000 + "1",
    "not " * 1000 + "1",
    "[" * 100 + "]" * 100,
    "+".join(["1"] * 200),
    "after" + ".a" * 200,
    "after" + "['a']" * 200,
    " if 1 else ".join(["1"] * 100),
    "+".join(["any(x for x in after.l)"] * 9),
    "import os",
    "x = 1",
    "assert True",
    "del after.x",
    "after.x; after.y",
    "if after: 1",
    "after.x\nafter.y",
    "1\x002",
    "'\ud800",
    "regex('(a+)+$' * 9000, after.s)",
    "regex('a{1000}{1000}', after.s)",
    "regex('(?=a)', after.s)",
    "regex(r'(a)\\1', after.s)",
    "regex(after.s, after.s)",
    "isinstance(after, type(after))",
    "isinstance(after, object)",
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: str(text)[:40].encode("ascii", "replace").decode())
def test_known_tricks_are_refused_when_the_file_is_checked(text: str) -> None:
    with pytest.raises(ExpressionError):
        compile_condition(text, CLOCK)
    with pytest.raises(ExpressionError):
        compile_expression(text, CLOCK)


BOMBS = [
    "'a' * 10**9".replace("10**9", "1000000000"),
    "1000000000 * 'a'",
    "[0] * 1000000000",
    "after.s * 2",
    "(0,) * after.l[9]",
    "'%1000000000d' % 1",
    "'%s' % after",
    "after.s % after",
    "after.n * after.n",
    "after.n * after.n * after.n * after.n",
    "*".join(["99999999999999999999"] * 40) + " * after.n * after.n",
    "after.s + after.s + after.s + after.s + after.s",
    "after.l + after.l",
    "after.s.replace('a', after.s)",
    "after.s.replace('', after.s)",
    "after.s.join(after.l)",
    "after.s.join(['', '', '', '', '', '', ''])",
    "after.s.replace('a', 'b ').split()",
    "f'{after.s}{after.s}{after.s}{after.s}{after.s}'",
    "round(5, -1000000000)",
    "round(5, 1000000000)",
    "int('9' + after.s.replace('a', '9'))",
    "str(after.n * 10000)[9] + str(after.n + after.n * 1)[5000]",
    "sum([after.l, after.l])",
    "[after.s + 'x' for x in after.l]",
    "[after.s.upper() for x in after.l]",
    "[x for x in after.l if x in after.s]",
    "[x for x in after.l if x in after.l]",
    "[x for x in after.l if after.l == after.l]",
    "[x for x in after.nested if x == x]",
    "[hash(after) for x in after.l]",
    "[str(after) for x in after.l]",
    "[after.l[:] for x in after.l]",
    "[f'{after.s}' for x in after.l]",
    "any(len(after.s.split('b')) == 2 for x in after.l)",
    "[c for c in after.s]",
    "sorted(after.s)",
]


@pytest.mark.parametrize("text", BOMBS)
def test_bombs_fail_without_growing(text: str) -> None:
    """Whatever the record contains, an evaluation ends soon and with little memory."""
    compiled = compile_expression(text, CLOCK)
    tracemalloc.start()
    began = time.thread_time()
    try:
        with pytest.raises(Exception, match=r".+"):
            compiled(RECORD)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.thread_time() - began < 3
    assert peak < 100_000_000


def test_a_regular_expression_takes_linear_time() -> None:
    compiled = compile_condition("regex('^(a+)+$', after.s + 'b')", CLOCK)
    began = time.thread_time()
    assert compiled(RECORD) is False
    assert time.thread_time() - began < 2


def test_generated_code_sees_no_builtins() -> None:
    compiled = compile_expression("after.x", CLOCK)
    assert getattr(compiled, "__globals__")["__builtins__"] == {}  # noqa: B009  # an attribute of functions only


def test_a_template_cannot_grow() -> None:
    compiled = compile_template('{{ replace "a" .Payload.After.s .Payload.After.s }}')
    with pytest.raises(Exception, match="larger than"):
        compiled(RECORD)
    for text in (
        '{{ printf "%1000000000d" 1 }}',
        '{{ printf "%.1000000000f" 1.0 }}',
        "{{ " + "(" * 5000 + "1 }}",
    ):
        with pytest.raises(ExpressionError):
            compile_template(text)


WORDS = r"""
after before key metadata x _ __class__ len str isinstance min regex hash now any join split upper in not and
or if else for lambda nil true eq index printf toJson default . ( ) [ ] { } ' " 1 1.5 0x 1e9 + - * ** / %
<< == < := , : # f' 'a' `a` "%d" \\ {{ }} {{- -}} | $ /* */ .Payload .After .Key .Metadata é
"""
PIECES = st.sampled_from([*WORDS.split(), " ", "\n", "\t", "\0", "\u0661", "\ud800"])
TEXTS = st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=25).map(" ".join), st.lists(PIECES).map("".join))


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
def test_any_text_compiles_or_is_refused(text: str) -> None:
    """The compilers raise nothing but ExpressionError, and its column is within the text."""
    for build in (
        lambda: compile_condition(text, CLOCK),
        lambda: compile_expression(text, CLOCK),
        lambda: compile_template(text),
        lambda: compile_condition("{{" + text + "}}", CLOCK),
    ):
        try:
            build()
        except ExpressionError as error:
            assert error.column is None or 0 <= error.column <= len(text) + 4
