"""A file's text and its YAML documents: their data, the place of every key and value, and their YAML mistakes."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import Node, ScalarNode
from ruamel.yaml.reader import ReaderError

from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.findings import Finding, Severity, shown
from conduit_dagster.config.references import FoundSecret, References, offset_of
from conduit_dagster.config.tree import AliasLimitError, Mapped, TreeBuilder, YamlFlaw, compose
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.secret_values import masked

MAX_BYTES = 10 * 1024 * 1024
"""Files beyond this size are not pipeline files; parsing them as YAML would take minutes."""

# YAML ends a document here even inside a block scalar, so a bad one can be cut out without parsing
_MARKER = re.compile(r"^(?:---|\.\.\.)(?=\s|$)", re.MULTILINE)
_SILENT_LINE = re.compile(r"\s*(#.*)?|%.*")


@dataclass(frozen=True)
class Chunk:
    """One YAML document as text, and its start in the file."""

    text: str
    start: int


@dataclass(frozen=True)
class ConfigText:
    """Name and text of a file. Line ends are ``\\n``."""

    file: str
    text: str

    @lazy_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def position(self, index: int) -> tuple[int, int]:
        """Return line and column, both from 1, of the character at an index."""
        line = bisect_right(self._line_starts, index)
        return line, index - self._line_starts[line - 1] + 1

    def chunks(self) -> list[Chunk]:
        """Return the YAML documents, cut at their markers; those without content are left out."""
        cuts = [0, *(match.start() for match in _MARKER.finditer(self.text)), len(self.text)]
        chunks: list[Chunk] = []
        start = 0
        for begin, end in itertools.pairwise(cuts):
            after = begin + 3 if self.text.startswith("...", begin) else begin
            start = after if start == begin else start
            # comments and directives before a marker belong to the document after it
            if not _is_silent(self.text[after:end]):
                chunks.append(Chunk(self.text[start:end], start))
                start = end
        return [chunk for chunk in chunks if not _is_blank(chunk.text)]


def source_of(text: str, file: str) -> ConfigText:
    """Return a text without its byte order mark, and with line ends ``\\n``."""
    return ConfigText(file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))


_MISSING = "check the path, or what it links to; conduit-dagster pipelines list shows each pipeline's file"
_REFUSED = "check the path and its permissions"


def read_source(path: Path, file: str) -> ConfigText | Finding:
    """Read a file, or return a finding if that fails. Never reads beyond the limit: a device must not hang it."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        return too_large(file) if len(data) > MAX_BYTES else source_of(data.decode("utf-8"), file)
    except UnicodeDecodeError as error:
        return unreadable(file, f"the file is not UTF-8: byte {error.start} cannot be read", "save it as UTF-8")
    except IsADirectoryError:
        return unreadable(file, "a folder, not a file", "name a file in it")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        is_missing = isinstance(error, FileNotFoundError)
        return unreadable(file, f"the file cannot be read: {reason}", _MISSING if is_missing else _REFUSED)


def unreadable(file: str, message: str, fix: str) -> Finding:
    """Return the finding for an unreadable file."""
    return Finding("config.file_unreadable", "error", file, 1, 1, "", message, fix=fix)


def too_large(file: str) -> Finding:
    """Return the finding for a file beyond the limit."""
    message = f"the file is larger than {MAX_BYTES // 1024 // 1024} MB"
    return Finding("config.file_too_large", "error", file, 1, 1, "", message, fix="split it into several files")


def _is_silent(text: str) -> bool:
    """Return whether a piece holds only comments, directives and blank lines, and opens no document."""
    return all(_SILENT_LINE.fullmatch(line) for line in text.split("\n"))


def _is_blank(text: str) -> bool:
    return _is_silent(re.sub(r"^---(?=\s|$)", "", text, flags=re.MULTILINE))


# exceptions that the YAML library raises on hostile text, besides its own errors
_REFUSALS = (YAMLError, ValueError, OverflowError, RecursionError, AssertionError, TypeError, LookupError)

_BEFORE_CONTENT = re.compile(r"(?:\s|#[^\n]*|---(?=\s))*")

# as a shell has them: ${NAME:-default}
_WITH_DEFAULT = re.compile(r"([A-Za-z_]\w*):?[-=?+]")
# text that is copied from a web page has them
_ODD_INDENT = re.compile("^ *[\u00a0\u2007\u202f\u3000\u200b]", re.MULTILINE)


@dataclass
class Document:
    """Data of one YAML document, and the place of each part in the file."""

    source: ConfigText
    chunk: Chunk
    tree: Mapped
    findings: list[Finding]
    _nodes: dict[str, Node]
    _keys: dict[str, Node]
    references: References
    _renamed: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def secrets(self) -> tuple[FoundSecret, ...]:
        """Secrets that the document refers to."""
        return self.references.secrets

    def rename(self, pointer: str, written: str) -> None:
        """Locate ``pointer`` at ``written`` from now on: for a deprecated or a dotted key."""
        self._renamed[pointer] = written

    def has(self, pointer: str) -> bool:
        """Return whether the file has a value at ``pointer``."""
        return self.written_at(pointer) in self._nodes

    def locate(self, pointer: str, on_key: bool = False, offset: int = 0) -> tuple[int, int]:
        """Return line and column of a value or its key; of the nearest enclosing value if it is not in the file.

        ``offset`` counts characters into a text. The result is exact unless a variable was expanded before it, or a
        quoted or folded text spans several lines.
        """
        written = self.written_at(pointer)
        while written not in self._nodes and written:
            written, on_key, offset = pointers.parent(written), False, 0
        node = self._nodes[written]
        if on_key or node.start_mark.index == node.end_mark.index:
            # YAML places an empty value at the start of the next token
            node, on_key = self._keys.get(written, node), True
        return self._source_position(node, 0 if on_key else offset)

    def text(self, pointer: str) -> str | None:
        """Return the scalar as written, with variables unexpanded; None for anything else."""
        node = self._nodes.get(self.written_at(pointer))
        return str(node.value) if isinstance(node, ScalarNode) else None

    def finding(
        self,
        pointer: str,
        code: str,
        message: str,
        *,
        severity: Severity = "error",
        got: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
        on_key: bool = False,
        column_offset: int = 0,
    ) -> Finding:
        """Return a finding at a place in this document."""
        line, column = self.locate(pointer, on_key, column_offset)
        got = None if got is None else shown(masked(got))
        return Finding(code, severity, self.source.file, line, column, pointer, message, got, expected, fix)

    def written_at(self, pointer: str) -> str:
        """Return the pointer under which the file has a value: a deprecated or dotted key is written elsewhere."""
        name = pointer
        while name and name not in self._nodes:
            if name in self._renamed:
                return self._renamed[name] + pointer[len(name) :]
            name = pointers.parent(name)
        return pointer

    def _source_position(self, node: Node, offset: int) -> tuple[int, int]:
        start = self.chunk.start + _index(node)
        line, column = self.source.position(start)
        if not offset or not isinstance(node, ScalarNode):
            return line, column
        if node.style == "|":
            return self._in_block(line, str(node.value), offset)
        return line, column + offset + (1 if node.style in ("'", '"') else 0)

    def _in_block(self, line: int, text: str, offset: int) -> tuple[int, int]:
        """Locate text in a literal block: it starts on the line after its indicator, indented like its first line."""
        before = text[:offset]
        rows = self.source.text.split("\n")[line:]
        body = next((row for row in rows if row.strip()), "")
        indent = len(body) - len(body.lstrip(" "))
        return line + 1 + before.count("\n"), indent + len(before.rpartition("\n")[2]) + 1


def load_documents(
    source: ConfigText, env: Mapping[str, str], root: Path | None = None
) -> tuple[list[Document], list[Finding]]:
    """Return all readable documents of a file, and one finding for each unreadable one.

    ``root``: base of relative paths in ``${file:PATH}``; None means the working directory.
    """
    if len(source.text) > MAX_BYTES:
        return [], [too_large(source.file)]
    loaded = [_load(source, chunk, References(env, root)) for chunk in source.chunks()]
    documents = [item for item in loaded if isinstance(item, Document)]
    return documents, [item for item in loaded if isinstance(item, Finding)]


def _load(source: ConfigText, chunk: Chunk, references: References) -> Document | Finding | None:
    builder = TreeBuilder(references)
    try:
        root = compose(chunk.text)
        tree: Any = None if root is None else builder.build(root)
    except AliasLimitError as error:
        return _whole(source, chunk, "config.alias_limit", str(error), "write the values out")
    except _REFUSALS as error:
        return _syntax(source, chunk, error)
    if tree is None:
        return None
    if not isinstance(tree, Mapped):
        message = "the document is not a mapping"
        return _whole(
            source,
            chunk,
            "config.parse_error",
            message,
            "write keys with values; a pipeline file starts with version: and pipelines:",
        )
    document = Document(source, chunk, tree, [], builder.nodes, builder.keys, references)
    document.findings += [_flaw(document, flaw) for flaw in builder.flaws]
    return document


def _flaw(document: Document, flaw: YamlFlaw) -> Finding:
    index = document.chunk.start + _index(flaw.node)
    got = None
    if flaw.reference is not None:
        written = document.source.text[index : document.chunk.start + flaw.node.end_mark.index]
        index, got = index + offset_of(written, flaw.reference.ordinal), flaw.reference.text
    line, column = document.source.position(index)
    file, why = document.source.file, flaw.reference.why if flaw.reference is not None else None
    expected, trace = (None, None) if why is None else (why.expected, why.trace)
    fix = _remedy(flaw, got)
    return Finding(flaw.code, "error", file, line, column, flaw.pointer, flaw.message, got, expected, fix, trace)


_REMEDIES = {
    "config.key_duplicate": "remove one of them",
    "config.tag_unknown": "leave it out; a variable is written ${NAME}, and a text that begins with ! in quotes",
}


def _remedy(flaw: YamlFlaw, got: str | None) -> str | None:
    if flaw.reference is None:
        return _REMEDIES.get(flaw.code)
    if flaw.reference.why is not None:
        return flaw.reference.why.fix
    literal = f"${got}"
    name = flaw.reference.name
    if name is not None and (shell := _WITH_DEFAULT.match(name)) is not None:
        return f"write ${{{shell[1]}}} and set {shell[1]}: a reference has no default; or write {literal} literally"
    return f"write {literal} for a literal dollar" if name is None else f"set {name}, or write {literal} literally"


def _whole(source: ConfigText, chunk: Chunk, code: str, message: str, fix: str) -> Finding:
    """Return a finding for a whole document, at the start of its content."""
    before = _BEFORE_CONTENT.match(chunk.text)
    line, column = source.position(chunk.start + (before.end() if before else 0))
    return Finding(code, "error", source.file, line, column, "", message, fix=fix)


def _syntax(source: ConfigText, chunk: Chunk, error: BaseException) -> Finding:
    if isinstance(error, RecursionError):
        return _whole(source, chunk, "config.parse_error", "the document is nested too deeply", "flatten it")
    if not isinstance(error, MarkedYAMLError | ReaderError):
        return _whole(source, chunk, "config.parse_error", f"this is not YAML: {error}", "check its syntax")
    index, message, fix = _reason(error, chunk.text)
    line, column = source.position(chunk.start + min(index, len(chunk.text)))
    return Finding("config.parse_error", "error", source.file, line, column, "", message, fix=fix)


def _reason(error: MarkedYAMLError | ReaderError, text: str) -> tuple[int, str, str | None]:
    """Return index and message of a syntax error, with a fix if one is known."""
    if isinstance(error, ReaderError):
        return (
            int(error.position),
            "a character that YAML does not allow",
            "remove it, or escape it in quotes",
        )
    mark = error.problem_mark or error.context_mark
    problem = str(error.problem or "this is not YAML")
    if "end of stream" in problem or "stream end" in problem:
        mark, problem = error.context_mark or mark, f"{error.context}: {problem}"
    index = mark.index if isinstance(mark, StringMark) else 0
    if text[index : index + 1] == "\t":
        return index, "a tab where YAML wants spaces", "indent with spaces"
    if "expected ',' or" in problem and text[index - 1 : index + 1] == "${":
        return index - 1, "a reference in { } or [ ] needs quotes", 'put the whole text in quotes: "${NAME}"'
    if (space := _ODD_INDENT.search(text, 0, index)) is not None:
        return space.end() - 1, "a space that YAML does not know, such as U+00A0", "indent with plain spaces"
    return index, *_explained(problem, str(error.context))


def _explained(problem: str, context: str) -> tuple[str, str | None]:
    """Return a problem in words of a pipeline file's author, and what to do, if that is known."""
    if "<block end>" in problem and "start>" in problem:
        return (
            "indented otherwise than the lines that it belongs to",
            "give keys of one mapping, and items of one list, the same indentation",
        )
    if "mapping values" in problem:
        return problem, 'put a text that holds ": " in quotes'
    if "expected ',' or" in problem:
        return problem, "put a comma between items; a text ends with the quote that it begins with, and only there"
    if "undefined alias" in problem:
        return problem, "define it before, with &; a text that begins with * needs quotes"
    if "alias" in context:
        return problem, "a text that begins with * needs quotes"
    return problem, "put the text in quotes" if "cannot start any token" in problem else None


def _index(node: Node) -> int:
    return int(node.start_mark.index)
