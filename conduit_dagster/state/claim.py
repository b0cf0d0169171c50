"""Association of a state store with its project: the same id in the store and in the project's home.

A home with an id has had a store. A store without that id, or one older than the home remembers, has lost state: using
it would read and deliver everything again, so it is refused unless the caller accepts it. A read-only command opens the
store only if there is one.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster import storage
from conduit_dagster.config.findings import UNSET
from conduit_dagster.private_home import file_mode, make_home
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError, from_os_error
from conduit_dagster.state import tables
from conduit_dagster.state.database import NoStore, loss_of, make_engine, open_database, place_of, reading, unreachable
from conduit_dagster.state.history import HistoryRetention, retain
from conduit_dagster.state.migrations import IS_CURRENT, require_not_newer
from conduit_dagster.state.row_statements import insert_if_absent, put
from conduit_dagster.state.sqlite_store import ACCEPT, WITHOUT_OLD, replaced, sqlite_file
from conduit_dagster.state.tables import generations, meta, pipelines

if TYPE_CHECKING:
    from conduit_dagster.config.project import Project


_FILE = "project"
_PLACES = ("", "/state", "/state/url", "/state/staging", "/state/log")
"""JSON pointers of what says where the state is; "" is the whole file, of which nothing is known if it is no YAML."""
_AGE_FILE = "state-age"
_STORED = sa.select(meta.c.value).where(meta.c.name == "project")
IS_CLAIMED = sa.and_(
    sa.exists(_STORED.where(meta.c.value == sa.bindparam("project", type_=meta.c.value.type))), IS_CURRENT
)
"""The SQL condition that the store still has the id ``project``, and this program's version."""
_STORED_AND_CURRENT = _STORED.add_columns(IS_CURRENT)
_AGE = sa.select(sa.func.coalesce(sa.func.sum(pipelines.c.heartbeat), 0))
"""Age of a store: the heartbeats of all pipelines. It only grows, with every transaction of a run."""
ACCEPTED: Final = "accepted-older"
"""Name, in the table of facts, of the highest generation that may be a lost store's: the time when an older store was
last accepted.
"""
_SET_BACK: Final = "set-back"
"""Name, in the table of facts, of the pipeline whose run found the store set back, until the store is accepted."""
_BACKUP = f"restore the store from a backup, {WITHOUT_OLD}, or correct CONDUIT_STATE_URL or state.url; {ACCEPT}"
_IN_DAGSTER = " (for Dagster, once: conduit-dagster pipelines start PIPELINE --accept-new-state)"


class StoreClaim:
    """A claimed store: the id that it shares with the home, and the age recorded in the home."""

    def __init__(self, engine: sa.Engine, home: Path, project: str) -> None:
        self.project, self._home = project, home
        self._place = place_of(engine)
        self._noted = 0

    def require(self, connection: sa.Connection) -> None:
        """Raise ``FatalError``: ``state.replaced`` unless the id is the project's, ``state.version`` if it is newer."""
        try:
            found, is_current = connection.execute(_STORED_AND_CURRENT).one_or_none() or (None, True)
        except SQLAlchemyError as error:
            if loss_of(error) != "tables":
                raise
            found, is_current = None, True
        if found is None:
            raise replaced(self._place, "was emptied")
        if found != self.project:
            raise replaced(self._place, f"was replaced by that of project {found}")
        if not is_current:
            require_not_newer(connection, self._place)

    def has_at_home(self, url: str) -> bool:
        """Return whether a place is in the project's home, which no other project uses."""
        path = storage.local_path(url)
        return path is not None and path.is_relative_to(self._home)

    def mark_set_back(self, connection: sa.Connection, pipeline: str) -> None:
        """Have this store refused, to all homes, until it is accepted: a run of the pipeline found it set back."""
        self.require(connection)
        put(connection, meta, [{"name": _SET_BACK, "value": pipeline}])

    def note(self, connection: sa.Connection) -> int:
        """Return the store's age within a transaction, for :meth:`remember` after its commit."""
        return int(connection.execute(_AGE).scalar_one())

    def remember(self, age: int) -> None:
        """Record the store's age in the home, so that an older store is detected. A full disk is no error."""
        if age <= self._noted:
            return
        draft = self._home / f".{_AGE_FILE}.{secrets.token_hex(4)}"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file_mode(draft)), "w") as file:
                file.write(f"{self.project} {age}\n")
            draft.replace(self._home / _AGE_FILE)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            return
        self._noted = age


_claims: WeakKeyDictionary[sa.Engine, StoreClaim] = WeakKeyDictionary()


def claim_of(engine: sa.Engine) -> StoreClaim | None:
    """Return the claim on an engine's store; None if it was opened without one."""
    return _claims.get(engine)


def is_kept(engine: sa.Engine) -> bool:
    """Return whether a claimed store is still the one that was opened, and was not found set back since.

    True while it is unreachable.
    """
    claim = claim_of(engine)
    try:
        if claim is not None:
            with reading(engine) as connection:
                claim.require(connection)
                return _found_set_back(connection) is None
    except SQLAlchemyError as error:
        return loss_of(error) is None
    except FatalError:
        return False
    return True


def open_store(url: str, home: Path, accept_new: bool = False, private: bool = True) -> sa.Engine:
    """Open the project's store and claim it. Raises like ``open_database`` and :func:`claim_store`."""
    own = ""
    try:
        own = _read(home / _FILE)
        make_home(home, private)
        engine = open_database(url, create=accept_new or not own, private=private)
    except NoStore:
        raise _lost(url, home, own) from None
    except OSError as error:
        raise _unusable_home(error, home) from error
    try:
        claim_store(engine, home, accept_new)
    except ConduitError:
        engine.dispose()
        raise
    return engine


def claim_store(engine: sa.Engine, home: Path, accept_new: bool = False) -> str:
    """Associate the store with the project's ``home`` folder; return their common id.

    A home without an id adopts the store's; of two concurrent claims one wins. ``accept_new``: a store without an id
    gets the home's, and an older store is accepted, which it remembers (:data:`ACCEPTED`).

    Raises ``FatalError``: ``state.lost`` if the home has an id and the store none, ``state.foreign`` if they differ,
    ``state.older`` if the home has seen later transactions. Raises ``TransientError`` if the store
    (``state.unreachable``) or the folder can't be written.
    """
    try:
        own = _read(home / _FILE)
        stored = _stored(engine, own or secrets.token_hex(16), accept_new or not own)
        if stored is None:
            raise _lost(str(place_of(engine)), home, own)
        own = own or _write(home, stored)
        if own != stored:
            raise _foreign(engine, home, own, stored)
        _check_age(engine, home, own, accept_new)
    except SQLAlchemyError as error:
        raise unreachable(engine, error, "the state store does not answer") from error
    except OSError as error:
        raise from_os_error(error, "the project's id can't be kept") from error
    _claims[engine] = StoreClaim(engine, home, stored)
    return stored


def _stored(engine: sa.Engine, fresh: str, create: bool) -> str | None:
    """Return the store's id; if it has none, set it to ``fresh`` or, unless ``create``, return None."""
    with reading(engine) as connection:
        found = connection.execute(_STORED).scalar_one_or_none()
    if found is not None or not create:
        return found
    with engine.begin() as connection:
        insert_if_absent(connection, meta, name="project", value=fresh)
        return str(connection.execute(_STORED).scalar_one())


def _check_age(engine: sa.Engine, home: Path, own: str, accept_new: bool) -> None:
    known = _known_age(home, own)
    with reading(engine) as connection:
        age, found_by = int(connection.execute(_AGE).scalar_one()), _found_set_back(connection)
    if age >= known and found_by is None:
        return
    if not accept_new and found_by is not None:
        raise _older(engine, f"was set back to an older state during a run of pipeline {found_by}")
    if not accept_new:
        counts = f"it counts {age} heartbeats, expected at least {known} ({home / _AGE_FILE})"
        raise _older(engine, f"is older than its last run: {counts}")
    # before the home forgets: a kill between the two must not leave offsets under the generations of the lost store
    with engine.begin() as connection:
        highest = connection.execute(sa.select(sa.func.max(generations.c.generation))).scalar() or 0
        put(connection, meta, [{"name": ACCEPTED, "value": str(max(number_of_now(), highest))}])
        connection.execute(sa.delete(meta).where(meta.c.name == _SET_BACK))
    (home / _AGE_FILE).unlink(missing_ok=True)


def _found_set_back(connection: sa.Connection) -> str | None:
    """Return the pipeline whose run found the store set back; None if none did since it was last accepted."""
    return connection.execute(sa.select(meta.c.value).where(meta.c.name == _SET_BACK)).scalar_one_or_none()


def number_of_now() -> int:
    """Return the time in microseconds: a generation that starts now has no lower number."""
    # microseconds stay exact in canonical JSON (2^53); before, generations were seconds, which are lower
    return time.time_ns() // 1000


def _known_age(home: Path, own: str) -> int:
    """Return the age recorded in the home; 0 if none is recorded for this project."""
    project, _, age = _read(home / _AGE_FILE).partition(" ")
    return int(age) if project == own and age.isdecimal() else 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def has_claim(home: Path) -> bool:
    """Return whether the home has had a state store. Raises ``TransientError`` if it can't be read."""
    return bool(project_id(home))


def project_id(home: Path) -> str:
    """Return the project's id; empty if nothing has ever run. Raises ``TransientError`` if it can't be read."""
    try:
        return _read(home / _FILE)
    except OSError as error:
        raise _unusable_home(error, home) from error


def _unusable_home(error: OSError, home: Path) -> TransientError:
    """Return the error for a home that another user owns, for example."""
    found = from_os_error(error, "the project's home can't be used")
    return TransientError(found.message, code="state.unreachable", place=found.place or str(home), fix=found.fix)


def _write(home: Path, value: str) -> str:
    """Write the id to the home unless it already has one; return the id in effect."""
    home.mkdir(parents=True, exist_ok=True)
    # atomic, and never replaces an existing id
    storage.put_new(str(home / _FILE), f"{value}\n".encode())
    return _read(home / _FILE)


def _lost(url: str, home: Path, own: str) -> FatalError:
    return FatalError(
        f"the state store is missing or empty; expected that of project {own}, which {home / _FILE} says was there."
        " Without its positions everything would be read and delivered again",
        code="state.lost",
        place=sa.make_url(url).set(query={}).render_as_string(),
        fix=_BACKUP + _IN_DAGSTER,
    )


def _older(engine: sa.Engine, what: str) -> FatalError:
    is_file = sqlite_file(engine.url) is not None
    newest = "file back, with its own -wal file if it has one" if is_file else "copy of the database back"
    return FatalError(
        f"the state store {what}. What was done since would be done again",
        code="state.older",
        place=place_of(engine),
        fix=f"put the newest {newest}; if this backup is the newest one: "
        f"conduit-dagster run --accept-new-state{_IN_DAGSTER}",
    )


def _foreign(engine: sa.Engine, home: Path, own: str, stored: str) -> FatalError:
    return FatalError(
        f"the state store belongs to project {stored}, and this is project {own} (in {home / _FILE})",
        code="state.foreign",
        place=place_of(engine),
        fix="point CONDUIT_STATE_URL or state.url to this project's own store;"
        f" if it is this one, delete {home.name}/{_FILE} to adopt it",
    )


def require_known_place(project: Project) -> None:
    """Raise an error if a value under ``state`` is unknown now: its default would be a different, empty store.

    ``TransientError`` if a provider of secrets failed, otherwise ``FatalError``.
    """
    for finding in project.findings:
        # with a wrong value as with an unknown one the default, another store, would take its place; a dotted key that
        # is given twice is found as it is written
        is_wrong = finding.code.startswith("config.") and finding.path.replace(".", "/") in _PLACES
        if is_wrong or (finding.code in UNSET and finding.path.startswith("/state")):
            message = f"where the project's state is can't be told: {finding.message}"
            if finding.code == "config.secret_failed":
                raise TransientError(message, code="secrets.unavailable", place=finding.place, fix=finding.fix)
            fix = finding.fix or "correct it; conduit-dagster validate shows it again"
            raise FatalError(message, code="state.url", place=finding.place, fix=fix)


def project_store(project: Project) -> sa.Engine:
    """Open the project's store; create it if it does not exist.

    Raises like :func:`open_store` and :func:`require_known_place`.
    """
    require_known_place(project)
    state = project.settings.state
    database = open_store(project.state_url, project.home, state.accept_new, state.private)
    retain(database, HistoryRetention(state.history.keep, state.history.most))
    return database


def existing_store(project: Project) -> sa.Engine | None:
    """Return the project's state store, or None if nothing has ever run: reading must not create it.

    Raises ``FatalError`` (``state.lost``, ``state.older``) without changing anything if the store is lost.
    """
    require_known_place(project)
    is_claimed = has_claim(project.home) and not project.settings.state.accept_new
    try:
        return project_store(project) if is_claimed or _has_content(project.state_url) else None
    except OSError as error:
        raise _unusable_home(error, project.home) from error


def _has_content(url: str) -> bool:
    address = sa.make_url(url)
    if address.get_backend_name() == "sqlite":
        file = sqlite_file(address)
        return file is not None and file.is_file() and file.stat().st_size > 0
    engine = make_engine(url)
    try:
        return sa.inspect(engine).has_table(tables.meta.name)
    except SQLAlchemyError as error:
        raise unreachable(engine, error, "the state store can't be opened") from error
    finally:
        engine.dispose()
