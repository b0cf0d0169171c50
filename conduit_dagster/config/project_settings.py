"""Project settings, ``conduit.yaml``: those of Conduit's keys that apply here, and our own."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from conduit_dagster.config.delivery import Recovery
from conduit_dagster.config.findings import refuse
from conduit_dagster.config.model_findings import Section
from conduit_dagster.config.scalars import PositiveAge, PositiveDuration, Settings

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+):([0-9]{1,5})")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~\-]+")


def address_of(text: str) -> tuple[str, int] | None:
    """Return host and port of ``HOST:PORT`` or ``[IPv6]:PORT``; None for any other text."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65_535:
        return None
    return found[1].strip("[]"), int(found[2])


def _address(text: str) -> str:
    if address_of(text) is None:
        raise refuse("not an address", expected="HOST:PORT, such as 127.0.0.1:9400")
    return text


def _webhook(url: str) -> str:
    """Check a webhook's URL. No error text contains the value: its knowledge is enough to post to it."""
    expected = "a URL such as https://HOST/PATH"
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise refuse("not a URL", expected=expected) from None
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise refuse("not a web address", expected=expected, fix="percent-encode what is not plain ASCII")
    if "@" in parts.netloc:
        fix = "give them as a header: alerts.headers: {Authorization: …}"
        raise refuse("the URL holds a user or a password", expected=expected, fix=fix)
    return url


SQLITE_STORES = ("sqlite", "sqlite+pysqlite")
POSTGRES_STORES = ("postgresql", "postgres", "postgresql+psycopg")
"""Schemes of a state store's URL."""


def _store_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme not in SQLITE_STORES + POSTGRES_STORES:
        fix = "write sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        raise refuse("a state store is SQLite or PostgreSQL", expected="the URL of one of them", fix=fix)
    if scheme in SQLITE_STORES and rest.lstrip("/") in ("", ":memory:"):
        fix = "write sqlite:///PATH, or leave it out"
        raise refuse("a state store in memory ends with its connection", expected="a file", fix=fix)
    return url


# a scheme may be that of a package of Spark's, but never the web's
_MASTER = re.compile(r"shared|yarn|local(-cluster)?(\[[^\]]+\])?|(?!https?:)[a-z][a-z0-9+.\-]*://.+")


def _spark_url(url: str) -> str:
    if _MASTER.fullmatch(url) is None:
        expected = "shared, local, local[N], local[*], spark://HOST:PORT, yarn, k8s://HOST:PORT or sc://HOST:PORT"
        raise refuse("Spark knows no such master", expected=expected)
    return url


def _headers(given: dict[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not _HEADER.fullmatch(name):
            raise refuse("a header's name holds a character that is not allowed", expected="a name such as X-Token")
        if not value.isascii() or not value.isprintable():
            raise refuse(f"header {name} holds a character that is not allowed", expected="printable ASCII on one line")
    return given


def _words(value: Any) -> Any:
    """Split a list given as one string, as in an environment variable."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


class PipelinesSettings(Section):
    """Pipelines of the project."""

    path: str = "./pipelines"
    """Folder or file with the pipelines."""

    exit_on_degraded: bool = False
    """End `run` as soon as one pipeline is degraded."""

    error_recovery: Recovery = Recovery()
    """Default recovery of all pipelines. `recovery` at the top level is the same."""


class LogSettings(Section):
    """Log output."""

    level: Literal["trace", "debug", "info", "warn", "error"] = "info"
    """Minimum severity to print."""

    format: Literal["cli", "json"] = "cli"
    """`cli` for people, or `json` for one JSON object per line."""


class SparkSection(Section):
    """Spark settings."""

    url: Annotated[str, AfterValidator(_spark_url)] = "local[*]"
    """`shared` (one local server for all runs of the project), a master URL (`local[*]`, `spark://…`, `yarn`,
    `k8s://…`) or a Spark Connect server (`sc://…`). Default: `shared` for runs in Dagster and for more than one
    pipeline in `run`. Short form: `spark: shared`.
    """

    conf: Settings = {}
    """Spark's own configuration. The shared server reads it when it starts."""

    parallelism: Annotated[int, Field(ge=1)] | None = None
    """Tasks per step. Defaults to Spark's default parallelism."""

    idle_timeout: PositiveDuration = 600.0
    """How long the shared server stays up without a session."""

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, data: Any) -> Any:
        """Accept a string such as ``spark: shared`` as the url alone."""
        return {"url": data} if isinstance(data, str) else data

    @property
    def named_url(self) -> str | None:
        """The url, if one is given."""
        return self.url if "url" in self.model_fields_set else None


class HistorySettings(Section):
    """Retention of a pipeline's history. Older events are removed gradually, not immediately."""

    keep: PositiveAge = 90 * 86_400.0
    """How long an event is kept, such as `90d` or `12h`."""

    most: Annotated[int, Field(ge=1)] = 10_000
    """Maximum number of events kept per pipeline, the newest ones."""


class StateSettings(Section):
    """State that must outlive a process."""

    url: Annotated[str, AfterValidator(_store_url)] | None = None
    """State store, as an SQLAlchemy URL. Defaults to SQLite in `$CONDUIT_HOME`."""

    staging: str | None = None
    """Location of staged records: a path or URL that the driver and all of Spark can open."""

    log: str | None = None
    """Location of the commit log, likewise. Default: next to the state store, or in the staging folder if set."""

    lease: PositiveDuration = 10.0
    """How long a pipeline's owner may be silent before another process takes over."""

    accept_new: bool = False
    """Accept a state store that is empty or older although the project has had a newer one: everything is then read and
    delivered again. `run --accept-new-state` does so once.
    """

    private: bool = True
    """Make `$CONDUIT_HOME` and everything created in it readable by its user only. `false`: the umask applies."""

    history: HistorySettings = HistorySettings()
    """Retention of a pipeline's history."""


class MetricsSettings(Section):
    """Prometheus metrics."""

    listen: Annotated[str, AfterValidator(_address)] | None = None
    """`HOST:PORT` where `run` serves metrics, as `run --metrics` does. Not with `--once`."""


class AlertsSettings(Section):
    """Events that Dagster's alert sensor reports, and where it posts them."""

    webhook: Annotated[str, AfterValidator(_webhook)] | None = Field(default=None, repr=False)
    """URL to which alerts are posted; without it nothing is reported. A secret: write `${VAR}`."""

    headers: Annotated[Settings, AfterValidator(_headers)] = Field(default={}, repr=False)
    """HTTP headers of every alert, such as `Authorization`. Secret as well."""

    allow_private: bool = True
    """Whether the webhook may be in a private network. `false`: alerts are posted to public addresses only, without a
    proxy.
    """

    on: Annotated[list[Literal["degraded", "dead-letters"]], BeforeValidator(_words)] = ["degraded", "dead-letters"]
    """Events to report."""

    dead_letter_growth: Annotated[int, Field(ge=1)] = 1
    """Number of new dead letters of a pipeline within the interval that triggers an alert."""

    interval: PositiveAge = 300.0
    """Interval over which new dead letters are counted; those of a pipeline are reported at most once per interval."""


class LineageSettings(Section):
    """Lineage for tools outside of Dagster."""

    openlineage: bool = False
    """Whether runs send OpenLineage events. The client's own configuration sets their destination, such as
    `OPENLINEAGE_URL` or `openlineage.yml`. Needs `pip install 'conduit-dagster[lineage]'`.
    """

    namespace: str | None = None
    """Namespace of the jobs. Defaults to the name of the project's folder."""


class ProjectSettings(Section):
    """All settings of a project."""

    pipelines: PipelinesSettings = PipelinesSettings()
    """Pipelines of the project."""

    log: LogSettings = LogSettings()
    """Log output."""

    spark: SparkSection = SparkSection()
    """Spark settings."""

    state: StateSettings = StateSettings()
    """State that must outlive a process."""

    metrics: MetricsSettings = MetricsSettings()
    """Prometheus metrics."""

    alerts: AlertsSettings = AlertsSettings()
    """Events that Dagster's alert sensor reports, and where it posts them."""

    lineage: LineageSettings = LineageSettings()
    """Lineage for tools outside of Dagster."""

    @property
    def recovery(self) -> Recovery:
        """Default recovery of all pipelines."""
        return self.pipelines.error_recovery


CONDUIT_ONLY = ("api", "connectors", "db", "dev", "grpc", "http", "preview", "processors", "schema-registry")
"""Conduit's other keys: ignored with a warning, so that its settings file can be reused."""
