"""Pipelines bound to their plugins, and the catalogue of a project's. No Spark, no Dagster.

Shared by ``validate``, ``describe`` and ``run``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from conduit_dagster.builtin_plugins import PROCESSORS, SOURCES
from conduit_dagster.config.findings import Finding, isolated, without_consequences
from conduit_dagster.config.folder import LoadedFiles, load
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import ConnectorConfig, DeadLetterQueue, Pipeline, ProcessorConfig
from conduit_dagster.config.project import Project
from conduit_dagster.config.references import FoundSecret, marked
from conduit_dagster.connectors.pipeline.read_mode import KEY
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline, compile_program
from conduit_dagster.engine.plugin_loading import PluginError, Plugins, failure_of, is_of_project, project_plugins
from conduit_dagster.engine.plugin_results import check_described
from conduit_dagster.engine.program import ConnectorSpec, ProcessorSpec, Program, choose_log
from conduit_dagster.engine.validation.cross_pipeline_rules import Upstreams, check_owners, link
from conduit_dagster.engine.validation.pipeline_rules import NOT_YET_FIX, GuaranteeRules, PluginRules, not_yet
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.classify import survivable
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.secret_values import masked

_PLUGIN_FIX = "fix the plugin; conduit-dagster validate --debug shows the traceback"
_UNTOLD = {"owners", "tests"}
"""Keys of a pipeline that do not affect how it runs."""


@dataclass(frozen=True)
class BoundPipeline:
    """A pipeline bound to its plugins, ready to run."""

    config: Pipeline
    file: str
    program: Program
    compiled: CompiledPipeline
    not_yet: tuple[str, ...]
    """Options that parse but are not implemented in the engine yet; a run refuses them by name."""
    secrets: tuple[FoundSecret, ...] = ()
    """Secrets that its document refers to."""

    @property
    def id(self) -> str:
        """The pipeline's id."""
        return self.config.id

    @property
    def digest(self) -> str:
        """Hash of everything that affects a run: the file, and the scripts and plugins it names.

        A change requires a new run. A changed secret in a referenced file changes the hash too; one from a secret
        provider does not. Secrets enter it only as marks (``FoundSecret.mark``).
        """
        if self.secrets:
            said = msgspec.json.encode(marked(self.config.model_dump(mode="json", exclude=_UNTOLD), self.secrets))
        else:
            said = self.config.model_dump_json(exclude=_UNTOLD).encode()
        # the location of the project does not matter
        data = msgspec.to_builtins(msgspec.structs.replace(self.program, root="", replay=None))
        del data["secrets"]
        return hashlib.sha256(said + b"\0" + msgspec.msgpack.encode(marked(data, self.secrets))).hexdigest()

    def refusal(self) -> FatalError | None:
        """Return the error that refuses a run of this pipeline although its file is valid; None if it may run."""
        if not self.not_yet:
            return None
        return FatalError(
            f"nothing was started: pipeline {self.id} asks for {', '.join(self.not_yet)}, which is not implemented yet",
            code="option.not_yet",
            node=self.id,
            place=self.file,
            fix=NOT_YET_FIX,
        )

    def log(self) -> tuple[str, str]:
        """Return the chosen ``delivery.log``, and why."""
        return choose_log(self.config, [source_node.source for source_node in self.compiled.sources])


def bind(
    parsed: ParsedPipeline, root: Path, plugins: Plugins, strict: bool = False, upstreams: Upstreams | None = None
) -> BoundPipeline | None:
    """Bind a pipeline to its plugins; return None on errors. Findings are added to ``parsed``."""
    with isolated(parsed, "checking this pipeline"):
        try:
            return _bound(parsed, root, plugins, strict, upstreams)
        except ConduitError as error:
            pointer = _place_of(parsed.config, error.node or "")
            parsed.findings.append(parsed.finding(pointer, error.code, error.message, got=error.place, fix=error.fix))
        except BaseException as error:
            # a plugin that calls sys.exit must not end the check of all files, without a word
            if survivable(error) is None or (place := failure_of(error, plugins)) is None:
                raise
            message = masked(f"a plugin failed while it was checked, in {place}: {type(error).__name__}: {error}")
            trace = "".join(traceback.format_exception(error))
            finding = parsed.finding("", "plugin.failed", message, fix=_PLUGIN_FIX)
            parsed.findings.append(dataclasses.replace(finding, trace=trace))
    return None


def _place_of(config: Pipeline, node: str) -> str:
    """Return the pointer to the settings of a node; empty for the pipeline itself."""
    sections = {node_id(config.id, DEAD_LETTERS): "/dead-letter-queue"}
    for one in config.connectors:
        sections[node_id(config.id, one.id)] = one.where
        sections |= {node_id(node_id(config.id, one.id), inner.id): inner.where for inner in one.processors}
    sections |= {node_id(config.id, one.id): one.where for one in config.processors}
    return f"{sections[node]}/settings" if node in sections else ""


def _bound(
    parsed: ParsedPipeline, root: Path, plugins: Plugins, strict: bool, upstreams: Upstreams | None
) -> BoundPipeline | None:
    PluginRules(parsed, plugins, strict).check()
    GuaranteeRules(parsed, plugins).check()
    if not parsed.runnable:
        return None
    secrets = parsed.document.secrets
    program = make_program(parsed.config, root, plugins, upstreams)
    program = msgspec.structs.replace(program, secrets=[secret.value for secret in secrets])
    compiled = compile_program(program, plugins)
    for node in compiled.sources:
        check_described(node.node, node.source)
    for name, destination in compiled.consumers.items():
        check_described(node_id(program.pipeline, name), destination)
    return BoundPipeline(parsed.config, parsed.file, program, compiled, tuple(not_yet(parsed.config)), secrets)


def bind_all(
    parsed: Iterable[ParsedPipeline],
    root: Path,
    plugins: Plugins,
    strict: bool = False,
    upstreams: Upstreams | None = None,
) -> list[BoundPipeline]:
    """Bind several pipelines; return those that can run. Two destinations may not write to the same resource."""
    parsed = list(parsed)
    pairs = [(one, bound) for one in parsed if (bound := bind(one, root, plugins, strict, upstreams)) is not None]
    check_owners(pairs)
    return [bound for one, bound in pairs if one.runnable]


def make_program(config: Pipeline, root: Path, plugins: Plugins, upstreams: Upstreams | None = None) -> Program:
    """Return the pipeline as data. Raises ``FatalError`` if a file that a processor names can't be read."""
    queue, specs = config.dead_letter_queue, _Specs(config.id, str(root.absolute()), plugins, upstreams or {})
    own = list(_used(config, plugins))
    kinds = (SOURCES.find(connector.plugin, plugins.sources) for connector in config.sources)
    return Program(
        config.id,
        str(root.absolute()),
        [specs.connector(c) for c in config.sources],
        [specs.processor(config.id, p) for p in config.processors],
        [specs.connector(c) for c in config.destinations],
        specs.queue(queue),
        queue.window_size,
        queue.window_nack_threshold,
        config.delivery.strategy,
        choose_log(config, kinds)[0],
        config.fan_in,
        plugins.texts if any(is_of_project(kind) for kind in own) else {},
        redact=list(config.redact),
        installed=not all(is_of_project(kind) for kind in own),
        packages=dict(plugins.packages[kind] for kind in own if kind in plugins.packages),
    )


def _used(config: Pipeline, plugins: Plugins) -> Iterator[type[Any]]:
    """Return the pipeline's plugins that are not built in."""
    for sections, kinds in (
        (config.sources, plugins.sources),
        ([*config.destinations, config.dead_letter_queue], plugins.destinations),
        (config.all_processors, plugins.processors),
    ):
        yield from (kinds[section.plugin] for section in sections if section.plugin in kinds)


@dataclass(frozen=True)
class _Specs:
    """Connectors and processors as data."""

    pipeline: str
    root: str
    plugins: Plugins
    upstreams: Upstreams

    def connector(self, connector: ConnectorConfig) -> ConnectorSpec:
        parent = node_id(self.pipeline, connector.id)
        upstream = self.upstreams.get((self.pipeline, connector.id))
        chained = {} if upstream is None else {KEY: upstream.encode()}
        specs = [self.processor(parent, processor) for processor in connector.processors]
        return ConnectorSpec(
            connector.id,
            connector.plugin,
            {**connector.settings, **chained},
            connector.namespace or "",
            specs,
            connector.condition or "",
            connector.start_from == "log",
        )

    def queue(self, queue: DeadLetterQueue) -> ConnectorSpec:
        specs = [self.processor(node_id(self.pipeline, DEAD_LETTERS), processor) for processor in queue.processors]
        return ConnectorSpec(DEAD_LETTERS, queue.plugin, dict(queue.settings), processors=specs)

    def processor(self, parent: str, processor: ProcessorConfig) -> ProcessorSpec:
        kind, node = PROCESSORS.find(processor.plugin, self.plugins.processors), node_id(parent, processor.id)
        try:
            settings = processor.settings if kind is None else kind.travelling(processor.settings, self.root)
        except ConduitError as error:
            error.set_node(node)
            raise
        return ProcessorSpec(
            node, processor.plugin, dict(settings), processor.condition or "", processor.namespace or ""
        )


@dataclass(frozen=True)
class Catalogue:
    """Runnable pipelines of a project, and all findings about it."""

    project: Project
    loaded: LoadedFiles
    plugins: Plugins
    bound: list[BoundPipeline]

    @property
    def findings(self) -> list[Finding]:
        """All findings: of the project's settings, of its plugins and of every pipeline file."""
        return [*self.project.findings, *map(_plugin_finding, self.plugins.errors), *self.loaded.findings]

    def get(self, pipeline: str) -> BoundPipeline | None:
        """Return the runnable pipeline with this id, or None."""
        return next((bound for bound in self.bound if bound.id == pipeline), None)


def open_catalogue(project: Project, paths: Iterable[Path | str] = (), strict: bool = False) -> Catalogue:
    """Read files and folders, by default those of the project. Their content never raises."""
    chosen = list(paths) or project.pipeline_paths
    loaded = load(chosen, strict=strict, recovery=project.settings.recovery, root=project.root)
    plugins = project_plugins(project.root)
    upstreams = link(loaded.pipelines, lambda: _of_folder(project), plugins)
    bound = bind_all(loaded.pipelines, project.root, plugins, strict, upstreams)
    for parsed in loaded.pipelines:
        parsed.findings = without_consequences(parsed.findings)
    return Catalogue(project, loaded, plugins, bound)


def _of_folder(project: Project) -> list[ParsedPipeline]:
    """Return the pipelines of the project's own folder, for the case that only some files were read."""
    paths = [path for path in project.pipeline_paths if os.path.exists(path)]  # noqa: PTH110
    return load(paths, recovery=project.settings.recovery, root=project.root).pipelines


def _plugin_finding(error: PluginError) -> Finding:
    return Finding(
        "plugin.broken", "error", error.file, error.line, 1, "", str(error), fix=error.fix, trace=error.trace
    )
