"""YAML documents as plain data that keeps its place in the file.

Parsed by libyaml where the text is plain, otherwise by the slower parser in Python.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml as libyaml
from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scanner import Scanner
from yaml import events

from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.references import BadReference, Lookup, expand

_DEEPEST = 100
"""Maximum number of nested brackets, and of levels, for the fast parser."""
_NOT_PLAIN = re.compile(
    # a directive; the end of a document, after which libyaml ignores another one; a comment directly after a block
    # indicator
    r"^%|^\.\.\.|[|>][-+\d]*#"
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
        root = _node(parser, parser.get_event(), text, 0)
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


def _node(parser: Any, event: Any, text: str, depth: int) -> Node:
    """Return the node that begins with ``event``."""
    if depth > _DEEPEST or isinstance(event, events.AliasEvent) or event.anchor or event.tag:
        raise _NotPlainError
    if isinstance(event, events.ScalarEvent):
        tag = _scalar_tag(event.value, event.implicit)
        # the parser in Python sets None where libyaml sets ""
        return ScalarNode(tag, event.value, event.start_mark, event.end_mark, style=event.style or None)
    children: list[Node] = []
    while not isinstance(following := parser.get_event(), events.CollectionEndEvent):
        children.append(_node(parser, following, text, depth + 1))
    places = (event.start_mark, following.end_mark)
    if isinstance(event, events.SequenceStartEvent):
        return SequenceNode(VersionedResolver.DEFAULT_SEQUENCE_TAG, children, *places, flow_style=event.flow_style)
    if event.flow_style and _is_pair(event, children, text):
        raise _NotPlainError
    pairs = list(zip(children[::2], children[1::2], strict=True))
    return MappingNode(VersionedResolver.DEFAULT_MAPPING_TAG, pairs, *places, flow_style=event.flow_style)


def _is_pair(event: Any, children: list[Node], text: str) -> bool:
    """Return whether a mapping in brackets has no braces of its own, as in ``[a: b]`` and ``[{a: b}: c]``.

    libyaml takes more for its colon than the parser in Python.
    """
    begin = event.start_mark.index
    return text[begin] != "{" or (bool(children) and children[0].start_mark.index == begin)


@lru_cache(4_096)
def _scalar_tag(value: str, implicit: tuple[bool, bool]) -> Any:
    return _RESOLVER.resolve(ScalarNode, value, implicit)


MAX_ALIASED = 100_000
"""Maximum number of nodes repeated by aliases in one document: a few lines of YAML can expand to billions."""

_YAML = "tag:yaml.org,2002:"
_MERGE, _NULL = f"{_YAML}merge", f"{_YAML}null"
_PLAIN = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
_PLAIN_TAGS = {f"{_YAML}{name}" for name in _PLAIN}
_HALF = re.compile("[\ud800-\udfff]")
_REPLACED = "\ufffd"


class Scalar(str):
    """Text of a scalar, with the YAML type of its spelling."""

    __slots__ = ("tag",)
    tag: str

    def __new__(cls, text: str, tag: str) -> Scalar:
        """Create a text with a tag."""
        scalar = super().__new__(cls, text)
        scalar.tag = tag
        return scalar


class Mapped(dict[str, Any]):
    """YAML mapping with its JSON pointer. Scalars in it are strings, null is None."""

    where: str = ""

    @classmethod
    def at(cls, where: str, items: Mapping[str, Any] | None = None) -> Mapped:
        """Return a mapping at a place."""
        mapped = cls(items or {})
        mapped.where = where
        return mapped


class AliasLimitError(Exception):
    """Raised for aliases that expand too much, or that contain themselves."""


@dataclass(frozen=True)
class YamlFlaw:
    """Flaw of the YAML itself at a node."""

    code: str
    pointer: str
    node: Node
    message: str
    reference: BadReference | None = None


@dataclass
class TreeBuilder:
    """Builder of one document's data from its nodes, expanding references in values (never in keys)."""

    values: Lookup
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    keys: dict[str, Node] = field(default_factory=dict[str, Node])
    flaws: list[YamlFlaw] = field(default_factory=list[YamlFlaw])
    _seen: set[int] = field(default_factory=set[int])
    _open: set[int] = field(default_factory=set[int])
    _aliased: int = 0
    _depth: int = 0

    def build(self, node: Node, where: str = "") -> Any:
        """Return the data under a node: text, None, a list or a :class:`Mapped`."""
        self.nodes[where] = node
        if node.tag not in _PLAIN_TAGS:
            # its author expects what another program makes of it, such as the value of a variable
            name = node.tag.replace(_YAML, "!!")
            self.flaws.append(YamlFlaw("config.tag_unknown", where, node, f"the tag {name} means nothing here"))
        if not isinstance(node, CollectionNode):
            self._join_halves(node, where)
            self._count()
            return self._scalar(node, where)
        with self._entered(node):
            if isinstance(node, MappingNode):
                return self._mapping(node, where)
            items: list[Node] = node.value
            return [self.build(item, pointers.child(where, i)) for i, item in enumerate(items)]

    @contextmanager
    def _entered(self, node: Node) -> Generator[None]:
        again = id(node) in self._seen
        if id(node) in self._open:
            raise AliasLimitError("an alias contains itself")
        self._depth += again
        self._count()
        self._seen.add(id(node))
        self._open.add(id(node))
        yield
        self._open.discard(id(node))
        self._depth -= again

    def _count(self) -> None:
        self._aliased += self._depth > 0
        if self._aliased > MAX_ALIASED:
            raise AliasLimitError(f"aliases repeat more than {MAX_ALIASED:,} values")

    def _mapping(self, node: MappingNode, where: str) -> Mapped:
        mapped = Mapped.at(where)
        for key, value in self._pairs(node, where):
            place = pointers.child(where, key.value)
            self.keys[place] = key
            mapped[key.value] = self.build(value, place)
        return mapped

    def _pairs(self, node: MappingNode, where: str) -> Iterator[tuple[ScalarNode, Node]]:
        """Yield own keys first, then merged keys that are not overridden."""
        taken: set[str] = set()
        merges: list[Node] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merges.append(value)
            elif self._is_new_key(key, taken, where):
                taken.add(key.value)
                yield key, value
        for merge in merges:
            for key, value in self._merged(merge, where):
                if key.value not in taken:
                    taken.add(key.value)
                    yield key, value

    def _join_halves(self, node: Node, where: str) -> None:
        """Combine an escaped pair of UTF-16 surrogates into one character, as JSON does; a lone one is a flaw."""
        if isinstance(node, ScalarNode) and _HALF.search(node.value):
            text = node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if _REPLACED in text and _REPLACED not in node.value:
                self.flaws.append(YamlFlaw("config.text_invalid", where, node, "the text holds half of a character"))
            node.value = text

    def _is_new_key(self, key: Node, taken: set[str], where: str) -> bool:
        if not isinstance(key, ScalarNode):
            self.flaws.append(YamlFlaw("config.parse_error", where, key, "a key must be a text"))
            return False
        self._join_halves(key, where)
        if key.value in taken:
            place, message = pointers.child(where, key.value), f"the key {key.value} is given twice"
            self.flaws.append(YamlFlaw("config.key_duplicate", place, key, message))
            return False
        return True

    def _merged(self, node: Node, where: str) -> Iterator[tuple[ScalarNode, Node]]:
        with self._entered(node):
            if isinstance(node, MappingNode):
                yield from self._pairs(node, where)
            elif isinstance(node, SequenceNode):
                # the first of several wins, as YAML specifies
                for item in node.value:
                    yield from self._merged(item, where)
            else:
                message = "<< merges mappings only"
                self.flaws.append(YamlFlaw("config.parse_error", where, node, message))

    def _scalar(self, node: Node, where: str) -> Scalar | None:
        if (tag := node.tag) == _NULL:
            return None
        if "$" not in node.value:
            return Scalar(node.value, tag)
        expanded = expand(node.value, self.values)
        self.flaws += [_unset(bad, where, node) for bad in expanded.bad]
        if _HALF.search(expanded.text):
            message = "the value of a reference in it is not UTF-8 text"
            self.flaws.append(YamlFlaw("config.text_invalid", where, node, message))
            return Scalar(_HALF.sub(_REPLACED, expanded.text), tag)
        return Scalar(expanded.text, tag)


def typed(data: Any) -> Any:
    """Return the data with numbers and booleans converted, for the free-form parts of a file."""
    if isinstance(data, dict):
        return {key: typed(value) for key, value in data.items()}
    if isinstance(data, list):
        return [typed(item) for item in data]
    return _typed_scalar(data) if isinstance(data, Scalar) else data


def _typed_scalar(scalar: Scalar) -> str | int | float | bool:
    text = str(scalar)
    try:
        match scalar.tag.removeprefix(_YAML):
            case "bool":
                return text.lower() in ("true", "yes", "on")
            case "int":
                return int(text.replace("_", ""), 0)
            case "float":
                return float(text.replace("_", ""))
            case _:
                return text
    except ValueError:
        return text


def _unset(bad: BadReference, where: str, node: Node) -> YamlFlaw:
    if bad.why is not None:
        return YamlFlaw(bad.why.code, where, node, bad.why.message, bad)
    if bad.name is None:
        return YamlFlaw("config.env_invalid", where, node, f"{bad.text} names no environment variable", bad)
    return YamlFlaw("config.env_unset", where, node, f"the environment variable {bad.name} is not set", bad)
