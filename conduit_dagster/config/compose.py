"""Nodes of a YAML document: by libyaml for plain text, otherwise by the slower parser in Python."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import yaml as libyaml
from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scanner import Scanner
from yaml import events

_DEEPEST = 100
"""Maximum number of nested brackets, and of levels, for the fast parser."""
_NOT_PLAIN = re.compile(
    # a directive; a comment directly after a block indicator
    r"^%|[|>][-+\d]*#"
    # a character that the two parsers treat differently: as a line end, as a space or as an error
    "|[^\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]",
    re.MULTILINE,
)
_RESOLVER = VersionedResolver()


def compose(text: str) -> Node | None:
    """Return the root node of the only document in ``text``; None if it has none.

    Both parsers give the same nodes with the same places. Text that libyaml refuses, or that the two could read
    differently (anchors, tags, directives, tabs, deep nesting), goes to the parser in Python, whose errors users see:
    YAMLError, and RecursionError for deep nesting.
    """
    try:
        return _plain_nodes(text)
    except (_NotPlainError, libyaml.YAMLError, ValueError, RecursionError):
        return _compose_slowly(text)


class _LimitedScanner(Scanner):
    """Scanner that stops at deep nesting: its run time is quadratic in the number of open brackets."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803  # the library's name
        if len(self.flow_context) >= _DEEPEST:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass, to_push)


def _compose_slowly(text: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _LimitedScanner
    # a repeated anchor is legal YAML: the last one counts
    yaml.composer.warn_double_anchors = False
    return yaml.compose(text)


class _NotPlainError(Exception):
    """Raised for text that needs the parser in Python."""


def _plain_nodes(text: str) -> Node | None:
    if not libyaml.__with_libyaml__ or _NOT_PLAIN.search(text):
        raise _NotPlainError
    parser: Any = libyaml.cyaml.CParser(text)  # pyright: ignore[reportAttributeAccessIssue]  # its types leave it out
    try:
        _expect(parser, events.StreamStartEvent)
        if isinstance(parser.get_event(), events.StreamEndEvent):
            return None
        root = _node(parser, parser.get_event(), 0)
        if not isinstance(root, MappingNode):
            raise _NotPlainError
        _expect(parser, events.DocumentEndEvent)
        _expect(parser, events.StreamEndEvent)
        return root
    finally:
        parser.dispose()


def _expect(parser: Any, kind: type[events.Event]) -> None:
    if not isinstance(parser.get_event(), kind):
        raise _NotPlainError


def _node(parser: Any, event: Any, depth: int) -> Node:
    """Return the node that begins with ``event``."""
    if depth > _DEEPEST or isinstance(event, events.AliasEvent) or event.anchor or event.tag:
        raise _NotPlainError
    if isinstance(event, events.ScalarEvent):
        tag = _scalar_tag(event.value, event.implicit)
        # the parser in Python sets None where libyaml sets ""
        return ScalarNode(tag, event.value, event.start_mark, event.end_mark, style=event.style or None)
    children: list[Node] = []
    while not isinstance(following := parser.get_event(), events.CollectionEndEvent):
        children.append(_node(parser, following, depth + 1))
    places = (event.start_mark, following.end_mark)
    if isinstance(event, events.SequenceStartEvent):
        return SequenceNode(VersionedResolver.DEFAULT_SEQUENCE_TAG, children, *places, flow_style=event.flow_style)
    pairs = list(zip(children[::2], children[1::2], strict=True))
    return MappingNode(VersionedResolver.DEFAULT_MAPPING_TAG, pairs, *places, flow_style=event.flow_style)


@lru_cache(4_096)
def _scalar_tag(value: str, implicit: tuple[bool, bool]) -> Any:
    return _RESOLVER.resolve(ScalarNode, value, implicit)
