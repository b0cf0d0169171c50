"""Rules on the guarantees of a pipeline: the combination of its plugins, its log and its options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conduit_dagster.builtin_plugins import DESTINATIONS, PROCESSORS, SOURCES
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import Pipeline, ProcessorConfig
from conduit_dagster.engine.plugin_loading import Plugins
from conduit_dagster.processors.common.stateful import StatefulProcessor


def not_yet(config: Pipeline) -> Iterable[str]:
    """Return options that parse but are not implemented in the engine yet."""
    delivery = config.delivery
    if delivery.drift:
        yield "delivery.drift: true"


class GuaranteeRules:
    """Checks of a parsed pipeline. Unknown plugins are ignored here: they have findings of their own."""

    def __init__(self, parsed: ParsedPipeline, plugins: Plugins) -> None:
        self._parsed, self._config, self._plugins = parsed, parsed.config, plugins

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
            self._add("/" + name.replace(".", "/"), "option.not_yet", message, severity="warning")

    @property
    def _logs_positions(self) -> bool:
        return self._config.delivery.log == "positions"

    def _sent_alone(self) -> Iterator[str]:
        """Yield the places of options that make a destination receive the log separately."""
        yield from (f"{late.where}/start-from" for late in self._config.destinations if late.start_from == "log")
        retention = self._config.delivery.log_retention
        if retention is not None and retention.partitions is not None:
            yield "/delivery/log-retention/partitions"

    def _add(self, pointer: str, code: str, message: str, **more: Any) -> None:
        self._parsed.findings.append(self._parsed.finding(pointer, code, message, **more))

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
