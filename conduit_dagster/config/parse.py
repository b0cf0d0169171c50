"""Parsing of a pipeline file into checked pipelines and findings: all of them, never only the first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from conduit_dagster.config import pointer as pointers
from conduit_dagster.config import rules
from conduit_dagster.config.delivery import Recovery
from conduit_dagster.config.document import Document, load_documents, read_source, source_of, unreadable
from conduit_dagster.config.findings import (
    UNSET,
    Finding,
    Severity,
    by_place,
    unexpected,
    unresolved,
    without_consequences,
)
from conduit_dagster.config.model_findings import Checker, kebab
from conduit_dagster.config.pipeline import LATEST_VERSION, OLDER_VERSIONS, Pipeline, PipelineFile
from conduit_dagster.config.tree import Mapped
from conduit_dagster.secret_values import remember_credentials


@dataclass
class ParsedPipeline:
    """One pipeline of a file.

    ``config`` is complete only if ``runnable``; otherwise it holds the valid parts, so that later checks can find more.
    Later stages append to ``findings``.
    """

    file: str
    pointer: str
    config: Pipeline
    document: Document
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def runnable(self) -> bool:
        """Whether neither the pipeline nor the enclosing document has an error."""
        return not any(finding.is_error for finding in (*self.findings, *self.document.findings))

    def has_finding(self, pointer: str) -> bool:
        """Return whether there is a finding at a place or below it."""
        return any(pointers.within(finding.path, self._full(pointer)) for finding in self.findings)

    def has_finding_at(self, pointer: str) -> bool:
        """Return whether there is a finding at exactly this place."""
        return any(finding.path == self._full(pointer) for finding in self.findings)

    def holds_unset(self, pointer: str) -> bool:
        """Return whether a value at a place or below it contains an unset variable."""
        unset = (finding.path for finding in self.findings if finding.code in UNSET)
        return any(pointers.within(path, self._full(pointer)) for path in unset)

    def locate(self, pointer: str = "", on_key: bool = False) -> tuple[int, int]:
        """Return line and column of a value or its key. Pointers start at the document or at the pipeline."""
        return self.document.locate(self._full(pointer), on_key)

    def written(self, pointer: str) -> str | None:
        """Return the scalar as written in the file, with variables unexpanded, and so safe to print."""
        return self.document.text(self._full(pointer))

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
        """Return a finding at a place in this pipeline, without adding it.

        ``column_offset`` counts characters into the text at that place, such as an expression.
        """
        return self.document.finding(
            self._full(pointer),
            code,
            message,
            severity=severity,
            got=got,
            expected=expected,
            fix=fix,
            on_key=on_key,
            column_offset=column_offset,
        )

    def _full(self, pointer: str) -> str:
        return pointer if pointers.within(pointer, self.pointer) else self.pointer + pointer


@dataclass
class ParsedFile:
    """Pipelines of a file, and the findings outside of them."""

    file: str
    pipelines: list[ParsedPipeline] = field(default_factory=list[ParsedPipeline])
    problems: list[Finding] = field(default_factory=list[Finding])

    @property
    def findings(self) -> list[Finding]:
        """All findings, in reading order."""
        inner = [finding for pipeline in self.pipelines for finding in pipeline.findings]
        return by_place([*self.problems, *inner])


def parse_file(
    path: Path | str,
    env: Mapping[str, str] | None = None,
    strict: bool = False,
    recovery: Recovery | None = None,
    root: Path | None = None,
) -> ParsedFile:
    """Read and check one file. Never raises: an unreadable file is a finding."""
    name = str(path).encode("utf-8", "backslashreplace").decode()
    if name != str(path):
        # tables, metadata and requests with the name are UTF-8
        return ParsedFile(name, problems=[unreadable(name, "the file's name is not UTF-8", "rename it")])
    source = read_source(Path(path), name)
    if isinstance(source, Finding):
        return ParsedFile(name, problems=[source])
    return parse_text(source.text, str(path), env, strict, recovery, root)


def parse_text(
    text: str,
    file: str,
    env: Mapping[str, str] | None = None,
    strict: bool = False,
    recovery: Recovery | None = None,
    root: Path | None = None,
) -> ParsedFile:
    """Check the text of a pipeline file. Never raises.

    ``env`` defaults to the process's environment. ``recovery``: the project's settings, with which a pipeline's own
    must be consistent. ``root``: base of relative paths in ``${file:PATH}``; None means the working directory. Clashes
    with other pipelines are found by ``load``.
    """
    parsed = ParsedFile(file)
    try:
        values = os.environ if env is None else env
        documents, parsed.problems = load_documents(source_of(text, file), values, root)
    except Exception as error:  # noqa: BLE001  # the safety net of this file
        parsed.problems.append(unexpected(error, "reading this file", (file, 1, 1, "")))
        return parsed
    for document in documents:
        _parse_isolated(parsed, document, strict, recovery or Recovery())
    if not documents and not parsed.problems:
        message = "the file holds no pipeline"
        parsed.problems.append(Finding("config.file_empty", "warning", file, 1, 1, "", message))
    return parsed


def _parse_isolated(parsed: ParsedFile, document: Document, strict: bool, recovery: Recovery) -> None:
    try:
        _parse_document(parsed, document, strict, recovery)
    except Exception as error:  # noqa: BLE001  # the safety net of this document
        finding = unexpected(error, "checking this document", (parsed.file, *document.locate(""), ""))
        # also keeps pipelines of the document that were read before the exception from running
        document.findings.append(finding)
        parsed.problems.append(finding)


def _parse_document(parsed: ParsedFile, document: Document, strict: bool, recovery: Recovery) -> None:
    checker = Checker(document, strict)
    yaml_flaws, document.findings = document.findings, []
    component = _component_attributes(document.tree)
    trees = _of_file(checker, document) if component is None else _of_component(document, component)
    for tree in trees:
        parsed.pipelines.append(_parse_pipeline(checker, tree, yaml_flaws, recovery))
    if component is None:
        places = [tree.where for tree in trees]
        document.findings += [flaw for flaw in yaml_flaws if not _inside(flaw, places)]
    document.findings = without_consequences(document.findings)
    parsed.problems += document.findings


def _of_file(checker: Checker, document: Document) -> list[Mapped]:
    version = _version_finding(document)
    document.findings += [] if version is None else [version]
    if version is not None and version.is_error:
        return []
    document.findings += _unknown_keys(checker, document)
    return _pipelines(document, document.tree)


def _component_attributes(tree: Mapped) -> Mapped | None:
    """Return the attributes of a Dagster component's document; None for any other document.

    A component is recognised by its structure, not by its type: subclasses have their own names.
    """
    attributes = tree.get("attributes")
    return attributes if isinstance(attributes, Mapped) and isinstance(tree.get("type"), str) else None


def _of_component(document: Document, attributes: Mapped) -> list[Mapped]:
    """Return the pipelines in a component's attributes; Dagster itself checks the rest of its file."""
    return _pipelines(document, attributes) if "pipelines" in attributes else []


def _inside(flaw: Finding, pipelines: list[str]) -> bool:
    return any(pointers.within(flaw.path, pointer) for pointer in pipelines)


def _parse_pipeline(checker: Checker, tree: Mapped, flaws: list[Finding], recovery: Recovery) -> ParsedPipeline:
    document = checker.document
    renamed = rules.rename_processor_types(tree, document)
    config, findings = checker.check(Pipeline, tree)
    _remember_credentials(config, unresolved(flaws))
    own = [flaw for flaw in flaws if pointers.within(flaw.path, tree.where)]
    # errors that follow from an unset variable or a duplicate key are not reported again
    told = {flaw.path for flaw in own}
    findings = [finding for finding in findings if finding.path not in told]
    parsed = ParsedPipeline(document.source.file, tree.where, config, document, [*own, *renamed, *findings])
    parsed.findings += rules.between_fields(tree, parsed, recovery)
    return parsed


def _remember_credentials(config: Pipeline, without_value: frozenset[str]) -> None:
    for section in (*config.connectors, config.dead_letter_queue, *config.all_processors):
        remember_credentials(section.settings, section.plugin, without_value)


def _pipelines(document: Document, tree: Mapped) -> list[Mapped]:
    """Return the mappings listed under ``pipelines``; anything else there is a finding."""
    value, where = tree.get("pipelines"), pointers.child(tree.where, "pipelines")
    if value is None:
        message, fix = "pipelines is required", "add pipelines: with a list of pipelines"
        document.findings.append(document.finding(where, "config.field_required", message, fix=fix))
        return []
    if not isinstance(value, list):
        document.findings.append(_not_a("list", document, where))
        return []
    items = cast(list[Any], value)
    wrong = [i for i, item in enumerate(items) if not isinstance(item, Mapped)]
    document.findings += [_not_a("mapping", document, f"{where}/{i}") for i in wrong]
    return [item for item in items if isinstance(item, Mapped)]


def _not_a(kind: str, document: Document, pointer: str) -> Finding:
    fix = "start each pipeline with - id:" if kind == "list" else "write it as id: and its fields"
    message = f"{'pipelines' if kind == 'list' else 'a pipeline'} must be a {kind}"
    got = document.text(pointer)
    return document.finding(pointer, "config.field_invalid", message, got=got, expected=f"a {kind}", fix=fix)


def _unknown_keys(checker: Checker, document: Document) -> list[Finding]:
    known = [kebab(name) for name in PipelineFile.model_fields]
    return [checker.unknown_key("", key, known) for key in document.tree if key not in known]


def _version_finding(document: Document) -> Finding | None:
    version = document.tree.get("version")
    if version == LATEST_VERSION:
        return None
    fix = f'write version: "{LATEST_VERSION}"'
    if version is None or version == "":
        message = f"no version is given; {LATEST_VERSION} is assumed"
        return document.finding("/version", "config.version_missing", message, severity="warning", fix=fix)
    if version in OLDER_VERSIONS:
        message = f"this version is older than {LATEST_VERSION}, as which it is read"
        return document.finding(
            "/version", "config.version_old", message, severity="warning", got=str(version), fix=fix
        )
    if str(version).startswith("1.") or version == "1":
        fix += ", and pipelines, connectors and processors as lists whose items have an id"
    return document.finding(
        "/version",
        "config.version_unknown",
        "this version of the format is not known",
        got=document.text("/version"),
        expected=", ".join([*OLDER_VERSIONS, LATEST_VERSION]),
        fix=fix,
    )
