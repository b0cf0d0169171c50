"""Location and settings of a project."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.document import Document, load_documents, read_source, source_of
from conduit_dagster.config.findings import UNSET, Finding, by_place, unexpected, unresolved
from conduit_dagster.config.model_findings import Checker, kebab, section_at
from conduit_dagster.config.project_settings import CONDUIT_ONLY, POSTGRES_STORES, ProjectSettings
from conduit_dagster.config.tree import Mapped
from conduit_dagster.extras import can_import, install_command, unopenable
from conduit_dagster.secret_values import remember_credentials

FILE = "conduit.yaml"
COMPONENT_FILE = "defs.yaml"
"""File of a Dagster component, whose attribute ``pipelines`` holds pipelines as a pipeline file does."""
_PIPELINES_KEY = re.compile(rb"^[ \t]+[\"']?pipelines[\"']?[ \t]*:", re.MULTILINE)
_HOME = ".conduit"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_SQLITE = "sqlite:///"
_RECOVERY = ("pipelines", "error-recovery")


@dataclass(frozen=True)
class Project:
    """Root, settings and home of a project. ``home`` holds the project's data: state, staging, logs."""

    root: Path
    settings: ProjectSettings
    home: Path
    findings: tuple[Finding, ...] = field(default=())

    @classmethod
    def find(cls, start: Path, env: Mapping[str, str] | None = None) -> Project:
        """Return the project of the nearest folder upwards with a ``conduit.yaml``, otherwise of ``start`` itself.

        Never raises. Environment variables override the file; settings with findings keep their defaults.
        """
        env = os.environ if env is None else env
        start = start.absolute()
        root = next((folder for folder in (start, *start.parents) if _is_file(folder / FILE)), start)
        try:
            settings, findings = _settings(root / FILE, env)
            _remember_credentials(settings, unresolved(findings))
        except Exception as error:  # noqa: BLE001  # the safety net of the settings file
            at = (str(root / FILE), 1, 1, "")
            settings, findings = ProjectSettings(), [unexpected(error, "checking the project's settings", at)]
        home = root / (env.get("CONDUIT_HOME") or _HOME)
        return cls(root, settings, home, tuple(by_place(findings)))

    def accepting_new_state(self, accept: bool = True) -> Project:
        """Return the project with ``state.accept-new``, unless ``accept`` is False."""
        if not accept:
            return self
        state = self.settings.state.model_copy(update={"accept_new": True})
        return replace(self, settings=self.settings.model_copy(update={"state": state}))

    def resolve(self, path: str) -> str:
        """Resolve a path of a setting against the root; absolute paths and URLs stay unchanged."""
        return path if _URL.match(path) else str(self.root / path)

    @property
    def pipelines_path(self) -> Path:
        """Folder or file with the pipelines."""
        return Path(self.resolve(self.settings.pipelines.path))

    @property
    def component_path(self) -> Path:
        """File of a Dagster component that represents this project, if it is one."""
        return self.root / COMPONENT_FILE

    @property
    def pipeline_paths(self) -> list[Path]:
        """Paths that pipelines are read from: the folder, and a component's file with its own pipelines."""
        if not _may_hold_pipelines(self.component_path):
            return [self.pipelines_path]
        return [*([self.pipelines_path] if self.pipelines_path.exists() else []), self.component_path]

    @property
    def has_pipelines(self) -> bool:
        """Whether any of the paths with pipelines exists."""
        return any(path.exists() for path in self.pipeline_paths)

    @property
    def state_url(self) -> str:
        """SQLAlchemy URL of the state store; a relative SQLite file is resolved against the root."""
        url = self.settings.state.url or f"{_SQLITE}{_in_url(self.home / 'state.db')}"
        url = url.replace("sqlite+pysqlite://", "sqlite://", 1)
        path = url.removeprefix(_SQLITE)
        return f"{_SQLITE}{_in_url(self.root) / path}" if path and path != url else url

    @property
    def staging_url(self) -> str:
        """Location of staged records."""
        return self.resolve(self.settings.state.staging or str(self.home / "staging"))

    @property
    def log_url(self) -> str:
        """Location of the commit log."""
        if self.settings.state.log or not self.settings.state.staging:
            return self.resolve(self.settings.state.log or str(self.home / "log"))
        # ids of pipelines have no tilde, so that no staging folder collides with the log
        return f"{self.staging_url.rstrip('/')}/~log"


def _in_url(path: Path) -> Path:
    """Return the path as it is written in a URL of SQLAlchemy, where ``%41`` is an ``A`` and ``?`` begins options."""
    return Path(str(path).replace("%", "%25").replace("?", "%3F"))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _may_hold_pipelines(path: Path) -> bool:
    """Return whether a file may be a component with pipelines, at the cost of reading it. Never raises."""
    try:
        return _PIPELINES_KEY.search(path.read_bytes()) is not None
    except OSError:
        return False


def _settings(path: Path, env: Mapping[str, str]) -> tuple[ProjectSettings, list[Finding]]:
    document, findings = _document(path, env)
    checker = Checker(document)
    tree = Mapped.at("")
    for keys, value, written in _flattened(document.tree):
        if keys[0] in CONDUIT_ONLY:
            findings.append(_ignored(document, written))
        elif not _put(tree, keys, value, document, written):
            findings.append(_given_twice(document, written, keys))
    settings, problems = checker.check(ProjectSettings, tree)
    # a value with an unset variable may be written as a dotted key
    unset = {flaw.path for flaw in document.findings if flaw.code in UNSET}
    problems = [problem for problem in problems if document.written_at(problem.path) not in unset]
    from_env, env_findings = _overridden(settings, env)
    checks = (_delays, _not_installed, _unopenable)
    own = [finding for check in checks for finding in check(from_env, document, env)]
    return from_env, [*findings, *document.findings, *problems, *own, *env_findings]


def _remember_credentials(settings: ProjectSettings, without_value: frozenset[str]) -> None:
    state, alerts = settings.state, settings.alerts
    sections: list[Mapping[str, Any]] = [
        {"url": state.url, "staging": state.staging, "log": state.log},
        settings.spark.conf,
        {"webhook.token": alerts.webhook},
        {f"{name}.token": value for name, value in alerts.headers.items()},
    ]
    for section in sections:
        remember_credentials(section, unresolved=without_value)


def _document(path: Path, env: Mapping[str, str]) -> tuple[Document, list[Finding]]:
    """Return the only document of the settings file; an empty one if the file is missing."""
    source = read_source(path, str(path)) if _is_file(path) else source_of("", str(path))
    if isinstance(source, Finding):
        return _empty(str(path)), [source]
    documents, findings = load_documents(source, env, path.parent)
    if len(documents) > 1:
        message, fix = "the settings are one document", "remove the others"
        findings.append(documents[1].finding("", "config.parse_error", message, fix=fix))
    return (documents[0] if documents else _empty(str(path))), findings


def _empty(file: str) -> Document:
    documents, _ = load_documents(source_of("{}", file), {})
    return documents[0]


def _ignored(document: Document, written: str) -> Finding:
    message = "this setting of Conduit means nothing here and was ignored"
    return document.finding(written, "config.field_ignored", message, severity="warning", on_key=True)


def _flattened(tree: Mapped, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Yield the names, value and place of every setting, whether nested or joined by dots."""
    for key, value in tree.items():
        names, written = (*above, *key.split(".")), pointers.child(tree.where, key)
        if names[0] == "recovery":
            names = (*_RECOVERY, *names[1:])
        if names[:2] == ("spark", "conf") and len(names) > 2:
            names = ("spark", "conf", ".".join(names[2:]))
        if isinstance(value, Mapped):
            yield from _flattened(value, names)
        else:
            yield names, value, written


def _given_twice(document: Document, written: str, keys: tuple[str, ...]) -> Finding:
    name = ".".join(keys)
    message = f"{name} and an earlier setting exclude each other: one of them would be ignored"
    fix = (
        "set it once; with other settings of spark, write spark: as spark.url:" if keys[0] == "spark" else "set it once"
    )
    return document.finding(written, "config.key_duplicate", message, fix=fix, on_key=True)


def _put(tree: Mapped, keys: tuple[str, ...], value: Any, document: Document, written: str) -> bool:
    """Set a setting; return False, and set nothing, if an earlier one excludes it. A null excludes none."""
    for key in keys[:-1]:
        inner = tree.get(key)
        if not isinstance(inner, Mapped):
            if inner is not None:
                return False
            inner = Mapped.at(pointers.child(tree.where, key))
            tree[key] = inner
        # a section is located at its first setting
        if not document.has(inner.where):
            document.rename(inner.where, written)
        tree = inner
    where = pointers.child(tree.where, keys[-1])
    if tree.get(keys[-1]) is not None:
        return value is None
    if where != written:
        document.rename(where, written)
    tree[keys[-1]] = value
    return True


def _overridden(settings: ProjectSettings, env: Mapping[str, str]) -> tuple[ProjectSettings, list[Finding]]:
    """Return the settings overridden by the environment; an invalid variable is reported and left out."""
    findings: list[Finding] = []
    for keys in _leaves():
        for name in _env_names(keys):
            if env.get(name):
                settings, found = _override(settings, keys, name, env[name])
                findings += found
    return settings, findings


def _override(
    settings: ProjectSettings, keys: tuple[str, ...], name: str, value: str
) -> tuple[ProjectSettings, list[Finding]]:
    document = _empty(f"${name}")
    tree = Mapped.at("")
    _put(tree, keys, value, document, "")
    parsed, findings = Checker(document).check(ProjectSettings, tree)
    return (settings if findings else _with(settings, parsed, keys)), findings


def _with(settings: Any, other: Any, keys: tuple[str, ...]) -> Any:
    name = keys[0].replace("-", "_")
    value = getattr(other, name)
    if len(keys) > 1:
        value = _with(getattr(settings, name), value, keys[1:])
    return settings.model_copy(update={name: value})


def _leaves(above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    section = section_at(ProjectSettings, above)
    for name in section.model_fields if section is not None else ():
        keys = (*above, kebab(name))
        if section_at(ProjectSettings, keys) is not None:
            yield from _leaves(keys)
        elif keys != ("spark", "conf"):
            yield keys


def _env_names(keys: tuple[str, ...]) -> list[str]:
    """Return the environment variables of a setting, the one with precedence last."""
    name = _env_name(keys)
    if keys[:2] == _RECOVERY:
        return [name, _env_name(("recovery", *keys[2:]))]
    return ["CONDUIT_PIPELINES", name] if keys == ("pipelines", "path") else [name]


def _env_name(keys: tuple[str, ...]) -> str:
    return "CONDUIT_" + "_".join(keys).replace("-", "_").upper()


def _not_installed(settings: ProjectSettings, document: Document, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each setting whose extra is missing."""
    store = (settings.state.url or "").partition("://")[0] in POSTGRES_STORES
    for needed, keys, module, extra in (
        (store, ("state", "url"), "psycopg", "postgres"),
        (settings.lineage.openlineage, ("lineage", "openlineage"), "openlineage", "lineage"),
    ):
        if needed and not can_import(module):
            where, place = pointers.join("", keys), _written_in(document, env, keys)
            message, fix = f"{'.'.join(keys)} needs the extra {extra}", install_command(extra)
            yield place.finding(where, f"{keys[0]}.not_installed", message, fix=fix)


def _delays(settings: ProjectSettings, document: Document, env: Mapping[str, str]) -> list[Finding]:
    if (message := settings.recovery.delays_problem) is None:
        return []
    places = [(*_RECOVERY, name) for name in ("min-delay", "max-delay")]
    document = _written_in(document, env, *places)
    where = pointers.join("", places[0])
    return [document.finding(where, "config.field_invalid", message, expected="min-delay at most max-delay")]


def _unopenable(settings: ProjectSettings, document: Document, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each location of records whose file system can't be used in this process."""
    for name, url in (("staging", settings.state.staging), ("log", settings.state.log)):
        if url is None or (problem := unopenable(url)) is None:
            continue
        keys = ("state", name)
        where, place = pointers.join("", keys), _written_in(document, env, keys)
        yield place.finding(where, "config.field_invalid", problem.message, fix=problem.fix)


def _written_in(document: Document, env: Mapping[str, str], *settings: tuple[str, ...]) -> Document:
    """Return the document of the environment variable that gives one of the settings; otherwise the file's."""
    chosen = next((name for keys in settings for name in reversed(_env_names(keys)) if env.get(name)), None)
    return document if chosen is None else _empty(f"${chosen}")
