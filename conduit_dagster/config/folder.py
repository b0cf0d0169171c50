"""Files and folders of pipelines, and conflicts between pipelines."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conduit_dagster.config.delivery import Recovery
from conduit_dagster.config.document import unreadable
from conduit_dagster.config.findings import Finding, by_place, isolated
from conduit_dagster.config.parse import ParsedFile, ParsedPipeline, parse_file

_SUFFIXES = (".yml", ".yaml")


@dataclass
class LoadedFiles:
    """All files of a load, in the order of the given paths and, within a folder, sorted by name."""

    files: list[ParsedFile] = field(default_factory=list[ParsedFile])

    @property
    def pipelines(self) -> list[ParsedPipeline]:
        """All pipelines, including those that cannot run."""
        return [pipeline for file in self.files for pipeline in file.pipelines]

    @property
    def findings(self) -> list[Finding]:
        """All findings, file by file in reading order."""
        return [finding for file in self.files for finding in by_place(file.findings)]

    def runnable(self) -> list[ParsedPipeline]:
        """Return the pipelines without an error of their own or of the enclosing document."""
        return [pipeline for pipeline in self.pipelines if pipeline.runnable]


def load(
    paths: Iterable[Path | str],
    env: Mapping[str, str] | None = None,
    strict: bool = False,
    recovery: Recovery | None = None,
    root: Path | None = None,
) -> LoadedFiles:
    """Parse files and the files of folders (no sub-folders, like Conduit), then compare their pipelines.

    ``root``: of the project, base of relative paths in ``${file:PATH}``; None means the working directory. A path given
    twice, or inside a folder that is also given, is read once.
    """
    loaded = LoadedFiles()
    seen: set[str] = set()
    for path in paths:
        for parsed_or_path in _files(Path(path)):
            if isinstance(parsed_or_path, ParsedFile):
                loaded.files.append(parsed_or_path)
            elif (real := os.path.realpath(parsed_or_path)) not in seen:
                seen.add(real)
                loaded.files.append(parse_file(parsed_or_path, env, strict, recovery, root))
    _compare(loaded.pipelines)
    return loaded


def dagster_name(pipeline_id: str) -> str:
    """Return the id as a valid Dagster job name: other characters become ``_``."""
    return re.sub(r"[^A-Za-z0-9_]", "_", pipeline_id)


def _files(path: Path) -> list[Path | ParsedFile]:
    # unlike Path.is_dir, never raises: a path that can't be examined is read, which gives the finding
    if not os.path.isdir(path):  # noqa: PTH112
        return [path]
    try:
        # a dangling link is kept, to be reported; a folder named x.yaml is not a pipeline file
        names = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in _SUFFIXES)
    except OSError as error:
        reason = error.strerror or str(error)
        problem = unreadable(str(path), f"the folder cannot be read: {reason}", "check its permissions")
        return [ParsedFile(str(path), problems=[problem])]
    return [entry for entry in names if not os.path.isdir(entry)]  # noqa: PTH112


def _compare(pipelines: list[ParsedPipeline]) -> None:
    """Refuse all pipelines that share an id, a name or a job: their order must not decide which one counts."""
    sound = [pipeline for pipeline in pipelines if not pipeline.has_finding("/id")]
    for group in _sharing(sound, lambda pipeline: pipeline.config.id):
        _add(group, "/id", "config.id_duplicate", "another pipeline has this id")
    for group in _sharing(sound, lambda pipeline: pipeline.config.name):
        if len({pipeline.config.id for pipeline in group}) > 1:
            _add(group, "/name", "config.name_duplicate", "another pipeline has this name")
    for group in _sharing(sound, lambda pipeline: dagster_name(pipeline.config.id)):
        if len({pipeline.config.id for pipeline in group}) > 1:
            name = dagster_name(group[0].config.id)
            _add(group, "/id", "config.id_clash", f"in Dagster another pipeline is called {name} too")


def _sharing(pipelines: list[ParsedPipeline], key: Callable[[ParsedPipeline], str]) -> list[list[ParsedPipeline]]:
    groups: defaultdict[str, list[ParsedPipeline]] = defaultdict(list)
    for pipeline in pipelines:
        groups[key(pipeline)].append(pipeline)
    return [group for group in groups.values() if len(group) > 1]


def _add(group: list[ParsedPipeline], field_name: str, code: str, message: str) -> None:
    fix = "give each its own " + field_name.strip("/")
    for pipeline in group:
        other = next(one for one in group if one is not pipeline)
        with isolated(pipeline, "comparing this pipeline with others"):
            line, column = other.locate(field_name)
            text = f"{message}: {other.file}:{line}:{column}"
            got = pipeline.written(field_name)
            pipeline.findings.append(pipeline.finding(field_name, code, text, got=got, fix=fix))
