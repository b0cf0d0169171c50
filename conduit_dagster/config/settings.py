"""The project's settings, ``conduit.yaml``: Conduit's keys where they mean something here, and our own."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from conduit_dagster.config.check import Section, refuse
from conduit_dagster.config.delivery import Recovery
from conduit_dagster.config.scalars import PositiveAge, PositiveDuration, Settings

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+):([0-9]{1,5})")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~\-]+")


def address_of(text: str) -> tuple[str, int] | None:
    """Host and port of ``HOST:PORT`` or ``[IPv6]:PORT``; None where it is neither."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65_535:
        return None
    return found[1].strip("[]"), int(found[2])


def _address(text: str) -> str:
    if address_of(text) is None:
        raise refuse("this is no address", expected="HOST:PORT, such as 127.0.0.1:9400")
    return text


def _webhook(url: str) -> str:
    """None of the texts holds the value: who knows a webhook's URL may write to it."""
    expected = "a URL such as https://HOST/PATH"
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise refuse("this is no URL", expected=expected) from None
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise refuse("this is no web address", expected=expected, fix="percent-encode what is not plain ASCII")
    if "@" in parts.netloc:
        fix = "give them as a header: alerts.headers: {Authorization: …}"
        raise refuse("the URL holds a user or a password", expected=expected, fix=fix)
    return url


def _headers(given: dict[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not _HEADER.fullmatch(name):
            raise refuse("a header's name holds a character that is not allowed", expected="a name such as X-Token")
        if not value.isascii() or not value.isprintable():
            raise refuse(f"header {name} holds a character that is not allowed", expected="printable ASCII on one line")
    return given


def _words(value: Any) -> Any:
    """A list may be written as one text, as an environment variable has it."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


class PipelinesSettings(Section):
    """The pipelines of the project."""

    path: str = "./pipelines"
    """The folder or file with the pipelines."""

    exit_on_degraded: bool = False
    """End `run` as soon as one pipeline is degraded."""

    error_recovery: Recovery = Recovery()
    """Recovery of all pipelines, where one says nothing else. `recovery` at the top level is the same."""


class LogSettings(Section):
    """What is printed."""

    level: Literal["trace", "debug", "info", "warn", "error"] = "info"
    """The least severe line to print."""

    format: Literal["cli", "json"] = "cli"
    """For people, or one JSON object per line."""


class SparkSettings(Section):
    """The Spark that moves the records."""

    url: str = "local[*]"
    """`shared` (one local server for all runs of the project), a master URL (`local[*]`, `spark://…`, `yarn`,
    `k8s://…`) or a Spark Connect server (`sc://…`). Where none is given: `shared` for runs in Dagster and for more
    than one pipeline in `run`. `spark: shared` is short for it."""

    conf: Settings = {}
    """Spark's own configuration. The shared server takes it when it starts."""

    parallelism: Annotated[int, Field(ge=1)] | None = None
    """Tasks per step. Spark's default parallelism, where none is given."""

    idle_timeout: PositiveDuration = 600.0
    """How long the shared server stays without a session."""

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, data: Any) -> Any:
        """``spark: shared`` says the url alone."""
        return {"url": data} if isinstance(data, str) else data

    @property
    def named_url(self) -> str | None:
        """The url, where one is given."""
        return self.url if "url" in self.model_fields_set else None


class HistorySettings(Section):
    """How much of a pipeline's history is kept. Older events go by and by, not at the very moment."""

    keep: PositiveAge = 90 * 86_400.0
    """How long an event is kept, such as `90d` or `12h`."""

    most: Annotated[int, Field(ge=1)] = 10_000
    """How many events of a pipeline are kept, the newest ones."""


class StateSettings(Section):
    """What must outlive a process."""

    url: str | None = None
    """The state store, as an SQLAlchemy URL. SQLite in `$CONDUIT_HOME`, where none is given."""

    staging: str | None = None
    """Where staged records lie: a path or URL that the driver and all of Spark can open."""

    log: str | None = None
    """Where the commit log lies, likewise. Next to the state store, or in the staging folder where one is named."""

    lease: PositiveDuration = 10.0
    """How long a pipeline's owner may be silent before another process takes over."""

    history: HistorySettings = HistorySettings()
    """How much of a pipeline's history is kept."""


class MetricsSettings(Section):
    """Prometheus metrics."""

    listen: Annotated[str, AfterValidator(_address)] | None = None
    """`HOST:PORT` where `run` serves them, as `run --metrics` does. Not with `--once`."""


class AlertsSettings(Section):
    """What Dagster's alert sensor reports, and to whom."""

    webhook: Annotated[str, AfterValidator(_webhook)] | None = Field(default=None, repr=False)
    """Where alerts are posted to; nothing is reported where none is given. A secret: write `${VAR}`."""

    headers: Annotated[Settings, AfterValidator(_headers)] = Field(default={}, repr=False)
    """HTTP headers of every alert, such as `Authorization`. Secrets too."""

    on: Annotated[list[Literal["degraded", "dead-letters"]], BeforeValidator(_words)] = ["degraded", "dead-letters"]
    """What is reported."""

    dead_letter_growth: Annotated[int, Field(ge=1)] = 1
    """How many new dead letters of a pipeline within the interval are worth an alert."""

    interval: PositiveAge = 300.0
    """The time in which new dead letters are counted; a pipeline's are reported at most once in it."""


class ProjectSettings(Section):
    """All settings of a project."""

    pipelines: PipelinesSettings = PipelinesSettings()
    """The pipelines of the project."""

    log: LogSettings = LogSettings()
    """What is printed."""

    spark: SparkSettings = SparkSettings()
    """The Spark that moves the records."""

    state: StateSettings = StateSettings()
    """What must outlive a process."""

    metrics: MetricsSettings = MetricsSettings()
    """Prometheus metrics."""

    alerts: AlertsSettings = AlertsSettings()
    """What Dagster's alert sensor reports, and to whom."""

    @property
    def recovery(self) -> Recovery:
        """Recovery of all pipelines, where a pipeline says nothing else."""
        return self.pipelines.error_recovery


CONDUIT_ONLY = ("api", "connectors", "db", "dev", "grpc", "http", "preview", "processors", "schema-registry")
"""Conduit's other keys: read past with a word, so that its settings file can stay."""
