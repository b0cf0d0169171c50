"""Rules across pipelines: those that read other pipelines, and resources that two of them would write to or read.

Source: DELIVERY.md, Destinations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conduit_dagster.builtin_plugins import SOURCES, is_builtin
from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.findings import did_you_mean, isolated
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import ConnectorConfig, Pipeline
from conduit_dagster.connectors.pipeline.read_mode import PLUGIN, READABLE, Upstream
from conduit_dagster.engine.plugin_loading import Plugins
from conduit_dagster.engine.plugin_results import owned_fix
from conduit_dagster.engine.program import choose_log
from conduit_dagster.sdk import Destination, Source

if TYPE_CHECKING:
    from conduit_dagster.engine.bound_pipeline import BoundPipeline
    from conduit_dagster.engine.source_nodes import SourceNode


Elsewhere = Callable[[], Iterable[ParsedPipeline]]
"""Loader of the pipelines in the project's own folder; called only for a name that is not loaded yet."""


Upstreams = dict[tuple[str, str], Upstream]
"""Upstream of each source that reads another pipeline, by the reader's pipeline and source id."""


class _Flaw(NamedTuple):
    setting: str
    code: str
    message: str
    fix: str
    expected: str | None = None


def link(parsed: Iterable[ParsedPipeline], elsewhere: Elsewhere, plugins: Plugins) -> Upstreams:
    """Return the upstream of each chained source. Errors become findings of the reading pipelines."""
    return _Chains(list(parsed), elsewhere, plugins).link()


class _Chains:
    def __init__(self, parsed: list[ParsedPipeline], elsewhere: Elsewhere, plugins: Plugins) -> None:
        self._parsed, self._elsewhere, self._plugins = parsed, elsewhere, plugins
        self._known = {one.config.id: one for one in reversed(parsed)}
        self._looked = False

    def link(self) -> Upstreams:
        found: Upstreams = {}
        for one in self._parsed:
            with isolated(one, "resolving the pipelines that this one reads"):
                found |= self._links(one)
        return found

    def _links(self, one: ParsedPipeline) -> Upstreams:
        found: Upstreams = {}
        for connector in self._chained(one.config):
            read = self._read(one.config, connector)
            if isinstance(read, _Flaw):
                self._add(one, connector, read)
            elif read is not None:
                found[one.config.id, connector.id] = read
        return found

    def _chained(self, config: Pipeline) -> Iterator[ConnectorConfig]:
        for connector in config.sources:
            if is_builtin(connector.plugin, PLUGIN, self._plugins.sources):
                yield connector

    def _add(self, one: ParsedPipeline, connector: ConnectorConfig, flaw: _Flaw) -> None:
        base = f"{connector.where}/settings"
        pointer = pointers.child(base, flaw.setting) if flaw.setting in connector.settings else base
        got = connector.settings.get(flaw.setting)
        finding = one.finding(pointer, flaw.code, flaw.message, got=got, expected=flaw.expected, fix=flaw.fix)
        one.findings.append(finding)

    def _get(self, name: str) -> ParsedPipeline | None:
        if name not in self._known and not self._looked:
            self._looked = True
            self._known = {**{one.config.id: one for one in self._elsewhere()}, **self._known}
        return self._known.get(name)

    def _read(self, reader: Pipeline, connector: ConnectorConfig) -> Upstream | _Flaw | None:
        """Return the upstream of a connector; None if a required setting is missing, which is reported elsewhere."""
        name = connector.settings.get("pipeline", "")
        if not name:
            return None
        other = self._get(name)
        if other is None:
            known = sorted(self._known.keys() - {reader.id})
            fix = (
                did_you_mean(name, known) or "name a pipeline of the project; conduit-dagster pipelines list shows them"
            )
            return _Flaw("pipeline", "chain.unknown_pipeline", f"there is no pipeline {name} in this project", fix)
        if (circle := self._circle(reader.id, name)) is not None:
            message = f"a cycle of pipelines never ends: {' reads '.join(circle)}"
            return _Flaw("pipeline", "chain.circle", message, "let one of them read another source")
        return _Reading(other, self._plugins).of(connector.settings.get("connector", ""))

    def _circle(self, reader: str, name: str) -> list[str] | None:
        """Return the path from ``reader`` through ``name`` back to ``reader``; None if there is no cycle."""
        ways = [[reader, name]]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            if way[-1] == reader:
                return way
            other = self._get(way[-1])
            if other is not None and way[-1] not in seen:
                seen.add(way[-1])
                further = (one.settings.get("pipeline", "") for one in self._chained(other.config))
                ways += [[*way, name] for name in further]
        return None


class _Reading:
    """Readable connectors of one pipeline."""

    def __init__(self, parsed: ParsedPipeline, plugins: Plugins) -> None:
        self._parsed, self._config, self._plugins = parsed, parsed.config, plugins

    def of(self, name: str) -> Upstream | _Flaw:
        if not name:
            return self._only_source()
        if any(source.id == name for source in self._config.sources):
            return Upstream(name) if self._is_logged() else self._no_log()
        for destination in self._config.destinations:
            if destination.id == name:
                return self._output(destination)
        names = [connector.id for connector in self._config.connectors]
        fix = did_you_mean(name, names) or self._choices()
        message = f"pipeline {self._config.id} has no connector {name}"
        return _Flaw("connector", "chain.unknown_connector", message, fix, ", ".join(names))

    def _is_logged(self) -> bool:
        kinds = (SOURCES.find(source.plugin, self._plugins.sources) for source in self._config.sources)
        return choose_log(self._config, kinds)[0] == "records"

    def _only_source(self) -> Upstream | _Flaw:
        if not self._is_logged():
            return self._no_log()
        if len(self._config.sources) == 1:
            return Upstream(self._config.sources[0].id)
        message = f"pipeline {self._config.id} has {len(self._config.sources)} sources with a log"
        return _Flaw("connector", "chain.which_connector", message, self._choices())

    def _choices(self) -> str:
        logged = [source.id for source in self._config.sources] if self._is_logged() else []
        written = [one.id for one in self._config.destinations if self._is_file(one)]
        named = [f"the log of {', '.join(logged)}"] if logged else []
        named += [f"the output of {', '.join(written)}"] if written else []
        return f"name one in settings.connector: {' or '.join(named) or 'it has none that can be read'}"

    def _is_file(self, destination: ConnectorConfig) -> bool:
        return is_builtin(destination.plugin, "file", self._plugins.destinations)

    def _no_log(self) -> _Flaw:
        line, _ = self._parsed.locate("")
        message = f"pipeline {self._config.id} keeps no log of records, so there is nothing to read of its sources"
        where = f"{self._parsed.file}:{line}"
        written = [one.id for one in self._config.destinations if self._is_file(one)]
        instead = f"; or read what it writes: connector: {written[0]}" if written else ""
        return _Flaw("connector", "chain.no_log", message, f"set delivery: {{log: records}} in {where}{instead}")

    def _output(self, destination: ConnectorConfig) -> Upstream | _Flaw:
        name, settings = destination.id, destination.settings
        if not self._is_file(destination):
            message = f"{name} is a {destination.plugin}: what it has published can't be read back from here"
            fix = "read the log of a source instead (delivery: {log: records} there), or a second destination, a file"
            return _Flaw("connector", "chain.not_readable", message, fix)
        if (known := settings.get("sdk.record.format", READABLE[0])) not in READABLE:
            message = f"what {name} writes can't be read back as records: {known}"
            return _Flaw("connector", "chain.not_readable", message, "let it write another format", ", ".join(READABLE))
        if self._config.delivery.strategy == "at-most-once":
            message = f"with at-most-once it is unknown how much of {name} is published"
            fix = f"set delivery.strategy: at-least-once in pipeline {self._config.id}, or read the log of a source"
            return _Flaw("connector", "chain.not_readable", message, fix)
        return Upstream(name, {key: str(value) for key, value in settings.items()})


def check_owners(pairs: Iterable[tuple[ParsedPipeline, BoundPipeline]]) -> None:
    """Add a finding for every resource with two owners."""
    owners: dict[str, str] = {}
    for parsed, bound in pairs:
        with isolated(parsed, "comparing what this pipeline writes and reads with others"):
            for name, one in bound.compiled.consumers.items():
                if thing := _taken(bound, name, one.owned, owners):
                    message, fix = f"{thing} is written by {owners[thing]} already", owned_fix(thing)
                    _add(parsed, bound, name, "destination.owned", message, fix=fix)
            for node in bound.compiled.sources:
                if thing := _taken(bound, node.id, node.source.owned, owners):
                    message, fix = (
                        f"the {thing} is read by {owners[thing]} already",
                        "give each source its own, in its settings",
                    )
                    _add(parsed, bound, node.id, "source.owned", message, fix=fix)
            _check_own_output(parsed, bound)


def _taken(bound: BoundPipeline, connector: str, thing: str | None, owners: dict[str, str]) -> str | None:
    """Return the resource of a connector if another one owns it; else it is the connector's from now on."""
    who = f"{connector} of pipeline {bound.id}"
    return thing if thing is not None and owners.setdefault(thing, who) != who else None


def _add(parsed: ParsedPipeline, bound: BoundPipeline, connector: str, code: str, message: str, **more: Any) -> None:
    section = next((one for one in bound.config.connectors if one.id == connector), None)
    place = f"{section.where}/settings" if section else "/dead-letter-queue"
    parsed.findings.append(parsed.finding(place, code, message, **more))


def _check_own_output(parsed: ParsedPipeline, bound: BoundPipeline) -> None:
    """Warn of a source that reads what its own pipeline writes: every record would come again, and never end."""
    for node in bound.compiled.sources:
        for name, destination in bound.compiled.consumers.items():
            thing = destination.owned
            flaw = None if thing is None else _own_output(node, name, destination, thing)
            for rule in (_own_topic, _own_table, _own_objects):
                flaw = flaw or rule(node, name, destination)
            if flaw is not None:
                _add(parsed, bound, node.id, "source.own_output", flaw[0], severity="warning", fix=flaw[1])


def _own_output(node: SourceNode, name: str, destination: Destination, thing: str) -> tuple[str, str] | None:
    """Return message and fix for a source that reads the ``thing`` that a destination writes; None if it does not."""
    source, path = node.source, path_of(node.source)
    if path is None:
        return None
    if is_read_with(thing, path) and not _leaves_out(source, thing):
        message = f"{thing} is written by {name} and read by {node.id}: its records come again without end"
        return message, "write elsewhere, or leave the file out with the setting exclude"
    rotated = getattr(source, "reads_when_rotated", None)
    if rotated is not None and getattr(destination, "is_one_file", False) and rotated(thing):
        message = f"{thing}, written by {name}, has the name of a rotated {Path(path).name}: once that is rotated or"
        return f"{message} replaced, {node.id} reads it as well", "write elsewhere, or to a name that begins otherwise"
    return None


def _own_topic(node: SourceNode, name: str, destination: Destination) -> tuple[str, str] | None:
    """Return message and fix for a source of topics that reads one which a destination writes; None otherwise."""
    reads: Callable[[str, str], bool] = getattr(node.source, "reads_topic", lambda servers, topic: False)
    written: Iterable[tuple[str, str]] = getattr(destination, "topics_written", ())
    for servers, topic in written:
        if reads(servers, topic):
            message = f"the topic {topic} is written by {name} and read by {node.id}: records come again without end"
            return message, "set topics to names, or to a pattern, that leave it out"
    return None


def _own_table(node: SourceNode, name: str, destination: Destination) -> tuple[str, str] | None:
    """Return message and fix for a source of tables that reads one which a destination writes; None otherwise."""
    reads: Callable[[str, str, str], bool] = getattr(node.source, "reads_table", lambda place, schema, name: False)
    written: Iterable[tuple[str, str, str]] = getattr(destination, "tables_written", ())
    for place, schema, table in written:
        if reads(place, schema, table):
            what = f"the table {schema}.{table} of {place} is" if table else f"the tables of {place} are"
            message = f"{what} written by {name} and read by {node.id}: records come again without end"
            more = "" if table else ", unless a processor gives them another opencdc.collection"
            return message + more, "write to a schema or database that the source does not read, or set tables to names"
    return None


def _own_objects(node: SourceNode, name: str, destination: Destination) -> tuple[str, str] | None:
    """Return message and fix for a source of objects that reads those which a destination writes; None otherwise."""
    reads: Callable[[str, str], bool] = getattr(node.source, "reads_objects", lambda store, key: False)
    written: tuple[str, str] | None = getattr(destination, "objects_written", None)
    if written is None or not reads(*written):
        return None
    message = f"the objects in {destination.address} are written by {name} and read by {node.id}: they come again"
    return f"{message} without end", "set the prefix of one of them so that the source does not read what is written"


def path_of(source: Source) -> str | None:
    """Return the resolved path or glob that a source reads; None if it reads no local files."""
    path = source.unit.get("path")
    return os.path.realpath(path) if isinstance(path, str) and path.startswith("/") else None


def is_read_with(thing: str, path: str) -> bool:
    """Return whether a written file is the one read, lies in the folder read, or matches the glob read.

    A folder of parts, or of folders of them, may also be read by a glob.
    """
    # texts and not ``Path``: it is asked for each pair of pipelines
    in_folder = os.path.split(thing)[0] == path or (path.startswith(f"{thing}/") and "*" in path[len(thing) :])
    return thing == path or in_folder or fnmatch(thing, path)


def _leaves_out(source: Source, thing: str) -> bool:
    excluded: Iterable[str] = getattr(source.settings, "excluded", ())
    return Path(thing).name.startswith((".", "_")) or any(fnmatch(Path(thing).name, one) for one in excluded)
