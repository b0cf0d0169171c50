"""The fast YAML parser gives the same result as the one in Python, or leaves the text to it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml as libyaml
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.mutated_files import GOLDEN, ROOT
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import Node

from conduit_dagster.config import tree
from conduit_dagster.config.tree import compose

_PIECES = [
    ":", ": ", " ", "  ", "\n", "\n\n", "\n  ", "- ", "-", "? ", ",", "[", "]", "{", "}", "'", '"', "''", "#", " #",
    "|", "|\n", "|2-\n", ">+\n", ">\n", "&a ", "*a", "!", "!!str ", "<<: ", "%", "@", "`", "~", "null", "yes", "0o7",
    "010", "1:30", "2001-01-01", "---", "\n---\n", "\n...\n", "\\", "\\x41", "\\u00e9", "é", "\u2028", "\x85", "\ufeff",
    "\t", "\r\n", "\r", "\0", "\x07", "😀", "a: b", "[a: b]", "{a}", "{a: }", "a:b", "http://x:1/y", "=", "0x1F",
    ".inf", "1_0",
]  # fmt: skip


@cache
def _texts() -> list[str]:
    found = [*ROOT.glob("pipelines/*.yaml"), *ROOT.glob("conduit_dagster/cli/templates/*.yaml")]
    texts = [file.read_text() for file in [*found, *sorted(GOLDEN.glob("*/pipeline.yaml"))]]
    return [*texts, "a: |\n  b\n  c\nd: >-\n  e\n  f\n\n  g\nh: [i, {j: k}]\nl: 'm ''n'\no: \"p\\n q\"\nr:\ns: ~\n"]


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    """Draw a piece of a real file with a few insertions, deletions and repetitions."""
    lines = draw(st.sampled_from(_texts())).splitlines(keepends=True)
    begin = draw(st.integers(0, len(lines)))
    text = "".join(lines[begin : begin + draw(st.integers(1, 30))])
    for _ in range(draw(st.integers(0, 4))):
        at, until = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        until = min(until, at + 12)
        piece = draw(st.one_of(st.sampled_from(_PIECES), st.just(text[at:until] * 2), st.text(max_size=5)))
        text = text[:at] + piece + text[draw(st.sampled_from((at, until))) :]
    return text


def _flat(node: Node | None) -> Any:
    """Return everything that a document reads of a node: kinds, tags, texts, styles and places."""
    if node is None:
        return None
    value: Any = node.value
    if isinstance(value, list):
        value = [tuple(map(_flat, item)) if isinstance(item, tuple) else _flat(item) for item in value]
    begin, end = node.start_mark, node.end_mark
    if begin.index == end.index:
        # an empty value is located at its key: libyaml places it behind the colon, the other before the next token
        return type(node).__name__, node.tag, value
    style = getattr(node, "style", None), getattr(node, "flow_style", None)
    return type(node).__name__, node.tag, begin.index, begin.line, begin.column, style, value


def _outcome(text: str) -> Any:
    try:
        return _flat(compose(text))
    except (YAMLError, ValueError, RecursionError, AssertionError, TypeError, LookupError) as error:
        return type(error), str(error)


@settings(max_examples=400, deadline=None)
@given(_mutated())
def test_both_parsers_give_the_same_nodes_at_the_same_places_or_the_same_error(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fast = _outcome(text)
        patch.setattr(tree.libyaml, "__with_libyaml__", False)
        assert fast == _outcome(text)


def test_the_files_people_write_are_read_by_the_fast_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    monkeypatch.setattr(tree, "_compose_slowly", refuse)
    for text in _texts():
        assert isinstance(compose(text.replace("\n---\n", "\n")), Node)


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 5000, "- " * 5000, "{a: " * 5000 + "}" * 5000, "a: &x [*x]", "%YAML 1.1\n---\na", "a: b\n...\n...\n"),
        *("a: [b: c]", "a: [{b: c}:]", "a: ['b':]", "a: [?]]"),
    ],
)
def test_what_is_deep_or_not_plain_is_left_to_the_parser_in_python(text: str) -> None:
    # newer libyaml itself refuses what is nested too deeply
    with pytest.raises((tree._NotPlainError, libyaml.YAMLError)):  # pyright: ignore[reportPrivateUsage]
        tree._plain_nodes(text)  # pyright: ignore[reportPrivateUsage]
