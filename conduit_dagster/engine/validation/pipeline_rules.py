"""Rules on one pipeline: each plugin's name, settings and condition, and the guarantees of their combination."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from pydantic import BaseModel, ValidationError

from conduit_dagster.builtin_plugins import DESTINATIONS, PROCESSORS, SOURCES, BuiltinPlugins, plain_name
from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.findings import Severity, did_you_mean
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import ConnectorConfig, DeadLetterQueue, Pipeline, ProcessorConfig
from conduit_dagster.engine.plugin_loading import Plugins
from conduit_dagster.expressions import Clock, ExpressionError, compile_condition
from conduit_dagster.sdk import ConnectorSettings, ProcessorSettings
from conduit_dagster.sdk.processor import StatefulProcessor
from conduit_dagster.sdk.promises import is_built_in
from conduit_dagster.secret_values import masked

_SDK_IGNORED = {
    "sdk.batch.*": "a step is a batch: delivery.batch-size",
    "sdk.rate.*": "nothing here limits how fast a destination is written; a generator has a rate of its own",
    "sdk.schema.*": "records carry no schemas here: avro.encode and avro.decode know a registry",
}
"""Settings that Conduit's SDK adds to every connector and that have no effect here, with the reason."""

_Kinds = tuple[BuiltinPlugins[Any], Mapping[str, type[Any]]]
"""The built-in plugins of one kind, and the others by name."""

_STRUCTURES = frozenset(f"{kind}_type" for kind in ("list", "tuple", "set", "frozen_set", "dict", "model", "dataclass"))
_TEXTS = "a setting is a text: see Settings in docs/plugins.md for how the plugin's own model makes {} of one"


class _Rules:
    def __init__(self, parsed: ParsedPipeline, plugins: Plugins) -> None:
        self._parsed, self._config, self._plugins = parsed, parsed.config, plugins

    def _add(self, pointer: str, code: str, message: str, **more: Any) -> None:
        self._parsed.findings.append(self._parsed.finding(pointer, code, message, **more))


class PluginRules(_Rules):
    """Checks of all plugins of a parsed pipeline; ``strict``: an unknown setting is an error, not a warning."""

    def __init__(self, parsed: ParsedPipeline, plugins: Plugins, strict: bool) -> None:
        super().__init__(parsed, plugins)
        self._lax: Severity = "error" if strict else "warning"

    def check(self) -> None:
        """Add the findings to the parsed pipeline."""
        config, plugins = self._config, self._plugins
        sources, destinations = (SOURCES, plugins.sources), (DESTINATIONS, plugins.destinations)
        for connector in config.connectors:
            kinds = (sources, destinations) if connector.type == "source" else (destinations, sources)
            self._check_plugin(connector, connector.where, *kinds)
            self._check_condition(connector)
            self._check_processors(connector.processors)
        self._check_processors((*config.processors, *config.dead_letter_queue.processors))
        self._check_plugin(config.dead_letter_queue, "/dead-letter-queue", destinations)

    # -- plugins ------------------------------------------------------------------------------------------------

    def _check_processors(self, processors: Iterable[ProcessorConfig]) -> None:
        for processor in processors:
            self._check_plugin(processor, processor.where, (PROCESSORS, self._plugins.processors))
            self._check_condition(processor)

    def _check_plugin(
        self, section: ConnectorConfig | DeadLetterQueue | ProcessorConfig, where: str, kinds: _Kinds, *others: _Kinds
    ) -> None:
        """Check the plugin of a section and its settings. ``others``: kinds that it may be one of instead."""
        (builtin, own), plugin, pointer = kinds, section.plugin, f"{where}/plugin"
        if (kind := builtin.find(plugin, own)) is not None:
            self._check_settings(kind.Settings, section.settings, where)
        elif (error := builtin.not_installed(plugin, own)) is not None:
            self._add(pointer, error.code, error.message, fix=error.fix)
        else:
            message = f"there is no {builtin.noun} {plugin}"
            for other, theirs in others:
                if other.find(plugin, theirs) or other.not_installed(plugin, theirs):
                    message = f"{plugin} is no {builtin.noun}, only a {other.noun}"
            self._unknown(pointer, message, plain_name(plugin), [*builtin.names(), *own])

    def _unknown(self, pointer: str, message: str, name: str, names: Iterable[str]) -> None:
        known = sorted(set(names))
        fix = (
            did_you_mean(name, known)
            or f'write it as a plugin of the project: a class in plugins/*.py with name = "{name}"'
        )
        if broken := sorted({error.file for error in self._plugins.errors}):
            fix = f"correct {', '.join(broken)}, which can't be used as it is; or {fix}"
        if not self._parsed.has_finding(pointer):
            self._add(pointer, "plugin.unknown", message, got=name, expected=", ".join(known), fix=fix)

    def _check_condition(self, section: ProcessorConfig | ConnectorConfig) -> None:
        try:
            if section.condition:
                compile_condition(section.condition, Clock())
        except ExpressionError as error:
            self._add(
                f"{section.where}/condition",
                "expression.invalid",
                error.message,
                got=self._parsed.written(f"{section.where}/condition"),
                fix=error.fix,
                column_offset=error.column or 0,
            )

    # -- settings -----------------------------------------------------------------------------------------------

    def _check_settings(self, model: type[BaseModel], settings: Mapping[str, str], where: str) -> None:
        base = f"{where}/settings"
        known = _known_keys(model)
        patterns = model.open_keys if issubclass(model, ConnectorSettings | ProcessorSettings) else ()
        idle = {**_SDK_IGNORED, **(model.idle_keys if issubclass(model, ConnectorSettings) else {})}
        for key, value in settings.items():
            if key in known:
                continue
            ignored = next((why for pattern, why in idle.items() if fnmatch(key, pattern)), None)
            if ignored is not None:
                self._idle_setting(pointers.child(base, key), value, ignored)
            elif not any(fnmatch(key, pattern) for pattern in patterns):
                self._unknown_setting(model, pointers.child(base, key), key, patterns)
        self._check_home(pointers.child(base, "path"), settings.get("path", ""))
        try:
            model.model_validate(dict(settings))
        except ValidationError as error:
            for flaw in error.errors():
                # a rule between settings can't be checked while one of them is unknown
                if flaw["loc"] or not self._parsed.holds_unset(base):
                    self._setting_finding(base, where, settings, dict(flaw))

    def _check_home(self, pointer: str, path: str) -> None:
        if path == "~" or path.startswith("~/"):
            message, fix = "no shell reads this: ~ is a folder of that name in the project", 'write "${HOME}/…"'
            self._add(pointer, "setting.home", message, severity="warning", got=self._parsed.written(pointer), fix=fix)

    def _idle_setting(self, pointer: str, value: str, why: str) -> None:
        # no warning for a setting whose value disables it in Conduit too
        if value not in ("", "0", "0s", "false"):
            self._add(pointer, "setting.idle", f"it does nothing here: {why}", severity="warning", fix="remove it")

    def _unknown_setting(self, model: type[BaseModel], pointer: str, key: str, patterns: Sequence[str]) -> None:
        known = _known_keys(model)
        part, fix = key.partition(".")[0], did_you_mean(key, known) or "remove it"
        if part in known and part != key and not is_built_in(model):
            fix = _TEXTS.format(part)  # of the built-in plugins none has groups of settings
        message, expected = "no such setting; it is ignored", ", ".join(sorted({*known, *patterns})) or "no settings"
        self._add(
            pointer, "setting.unknown", message, severity=self._lax, got=key, expected=expected, fix=fix, on_key=True
        )

    def _setting_finding(self, base: str, where: str, settings: Mapping[str, str], flaw: dict[str, Any]) -> None:
        context = flaw.get("ctx") or {}
        key = str(flaw["loc"][0] if flaw["loc"] else context.get("at") or "")
        if flaw["type"] == "missing":
            if self._parsed.has_finding(pointers.child(base, key)) or self._parsed.has_finding_at(base):
                return  # it is there, as something that no setting can be
            self._add(where, "setting.required", f"the setting {key} is missing", fix=f"add settings.{key}")
            return
        pointer = pointers.child(base, key) if key in settings else (base if settings else where)
        self._add(
            pointer,
            f"{flaw['type']}.invalid" if flaw["type"] in ("expression", "reference") else "setting.invalid",
            str(flaw["msg"]).removeprefix("Value error, "),
            got=masked(self._parsed.written(pointer) or "") if key in settings else None,
            expected=context.get("expected"),
            fix=context.get("fix") or (_TEXTS.format(key) if flaw["type"] in _STRUCTURES else None),
            column_offset=context.get("column") or 0,
        )


def _known_keys(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


NOT_YET_FIX = (
    "leave the option out; where a destination needs a pace of its own, give it a pipeline that reads the log of the "
    "one that takes the records in (plugin: pipeline, docs/chained-pipelines.md)"
)


def not_yet(config: Pipeline) -> Iterable[str]:
    """Return options that parse but are not implemented in the engine yet."""
    delivery = config.delivery
    if delivery.drift:
        yield "delivery.drift: true"


class GuaranteeRules(_Rules):
    """Checks of what a pipeline's plugins, log and options guarantee together.

    Unknown plugins are ignored here: they have findings of their own.
    """

    def check(self) -> None:
        """Add the findings to the parsed pipeline."""
        self._check_strategies()
        self._check_replayable()
        self._check_stateful()
        if self._config.fan_in == "join" and self._logs_positions:
            message = "a join pairs records that were logged"
            self._add("/delivery/log", "fan_in.needs_log", message, fix="remove log, or set log: records")
        for pointer in self._sent_alone():
            self._check_from_log(pointer)
        for option in not_yet(self._config):
            name, _, value = option.partition(": ")
            message = f"{name}: {value} is not implemented yet; a run of this pipeline is refused"
            self._add("/" + name.replace(".", "/"), "option.not_yet", message, severity="warning", fix=NOT_YET_FIX)

    @property
    def _logs_positions(self) -> bool:
        return self._config.delivery.log == "positions"

    def _sent_alone(self) -> Iterator[str]:
        """Yield the places of options that make a destination receive the log separately."""
        yield from (f"{late.where}/start-from" for late in self._config.destinations if late.start_from == "log")
        retention = self._config.delivery.log_retention
        if retention is not None and retention.partitions is not None:
            yield "/delivery/log-retention/partitions"

    def _check_from_log(self, pointer: str) -> None:
        if self._logs_positions:
            message, fix = "without a log of records there is nothing to start from", "remove log, or set log: records"
            self._add(pointer, "destination.needs_log", message, fix=fix)
        if self._config.fan_in == "join":
            message, fix = "the log holds records before they are joined", f"remove {pointer.rpartition('/')[2]}"
            self._add(pointer, "destination.needs_log", message, fix=fix)

    def _check_replayable(self) -> None:
        for source in self._config.sources:
            kind = SOURCES.find(source.plugin, self._plugins.sources)
            if kind is not None and not kind.replayable and self._logs_positions:
                message = f"{source.plugin} can't be read twice, so its records must be logged"
                self._add("/delivery/log", "source.not_replayable", message, fix="remove log, or set log: records")

    # -- strategies ---------------------------------------------------------------------------------------------

    def _check_strategies(self) -> None:
        for one in self._config.destinations:
            self._check_strategy(one.plugin, one.settings, f"{one.where}/plugin", one.id)
        queue = self._config.dead_letter_queue
        stores_nothing = queue.window_size > 0 and queue.window_nack_threshold == 0
        if not stores_nothing:
            self._check_strategy(queue.plugin, queue.settings, "/dead-letter-queue/plugin", "the dead-letter queue")

    def _check_strategy(self, plugin: str, settings: Mapping[str, str], pointer: str, name: str) -> None:
        kind = DESTINATIONS.find(plugin, self._plugins.destinations)
        strategy = self._config.delivery.strategy
        if kind is None or strategy in (kept := kind.strategies_with(settings)):
            return
        possible = "at-least-once" if "at-least-once" in kept else ", ".join(sorted(kept))
        other = "use a destination that supports it"
        if strategy in kind.strategies:
            other = "leave out the settings that do not go with it (if-changed: adopt)"
        self._add(
            pointer,
            "delivery.strategy_unsupported",
            f"{name} does not support {strategy}" + (" with these settings" if strategy in kind.strategies else ""),
            expected=", ".join(sorted(kept)),
            fix=f"set delivery.strategy: {possible}, or {other}",
        )

    # -- stateful processors ------------------------------------------------------------------------------------

    def _check_stateful(self) -> None:
        """Check stateful processors: they need all records they ever see in a single order, and each only once."""
        config = self._config
        outside = [p for connector in config.sources for p in connector.processors]
        for processor in filter(self._is_stateful, (*outside, *config.dead_letter_queue.processors)):
            message = f"{processor.plugin} is allowed only among the processors of the pipeline or of a destination"
            self._add(f"{processor.where}/plugin", "processor.misplaced", message, fix="move it there")
        inside = [*config.processors, *(p for connector in config.destinations for p in connector.processors)]
        if not (mine := next(filter(self._is_stateful, inside), None)):
            return
        if config.delivery.max_in_flight > 1:
            message = f"{mine.plugin} needs each step to end before the next one is staged"
            self._add("/delivery/max-in-flight", "processor.one_in_flight", message, fix="set max-in-flight: 1")
        for pointer in self._sent_alone():
            message = f"{mine.plugin} would take what the log sends again for duplicates"
            self._add(pointer, "destination.remembering", message, fix=f"remove {pointer.rpartition('/')[2]}")

    def _is_stateful(self, processor: ProcessorConfig) -> bool:
        kind = PROCESSORS.find(processor.plugin, self._plugins.processors)
        return kind is not None and issubclass(kind, StatefulProcessor)
