"""Pipeline files as text, and their findings."""

from __future__ import annotations

from conduit_dagster.config import parse_text
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.parse import ParsedFile

HEAD = """\
version: "2.2"
pipelines:
  - id: orders
"""
ENDS = """\
    connectors:
      - {id: in, type: source, plugin: "builtin:file"}
      - {id: out, type: destination, plugin: "file@v1"}
"""
DESCRIBED = """\
version: "2.2"
pipelines:
  - id: p
    description: "%s"
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out}}
"""
"""A pipeline whose description, on line 4, is a parameter."""
P = "/pipelines/0"


def parse(text: str, strict: bool = False, **env: str) -> ParsedFile:
    return parse_text(text, "f.yaml", env, strict)


def pipeline(fields: str, ends: str = ENDS, strict: bool = False, **env: str) -> ParsedFile:
    """The fields start on line 4, the ends after them."""
    return parse(HEAD + fields + ends, strict, **env)


def place(finding: Finding) -> tuple[str, int, int, str]:
    assert finding.file == "f.yaml"
    return finding.code, finding.line, finding.column, finding.path


def only(parsed: ParsedFile) -> Finding:
    (finding,) = parsed.findings
    return finding
