"""YAML nodes as plain data that keeps its place in the file."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.environment import BadReference, Lookup, expand

MAX_ALIASED = 100_000
"""Maximum number of nodes repeated by aliases in one document: a few lines of YAML can expand to billions."""

_YAML = "tag:yaml.org,2002:"
_MERGE, _NULL = f"{_YAML}merge", f"{_YAML}null"
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
