"""Advice of ``lint``: configurations that run, but are seldom intended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from conduit_dagster.builtin_plugins import plain_name
from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import ConnectorConfig, DeadLetterQueue, ProcessorConfig

_WINDOW = {"window_size", "window_nack_threshold"}


def advice(pipelines: Iterable[ParsedPipeline]) -> list[Finding]:
    """Return all advice, pipeline by pipeline."""
    return [finding for parsed in pipelines for finding in _about(parsed)]


def _about(parsed: ParsedPipeline) -> Iterator[Finding]:
    yield from _queue(parsed)
    for connector in parsed.config.connectors:
        yield from _path(parsed, connector, connector.where)
        yield from _version(parsed, connector)
    for processor in _processors(parsed):
        yield from _version(parsed, processor)
        yield from _workers(parsed, processor)


def _processors(parsed: ParsedPipeline) -> list[ProcessorConfig]:
    config = parsed.config
    inner = [processor for connector in config.connectors for processor in connector.processors]
    return [*config.processors, *inner]


def _queue(parsed: ParsedPipeline) -> Iterator[Finding]:
    queue, where = parsed.config.dead_letter_queue, "/dead-letter-queue"
    if not queue.model_fields_set & _WINDOW:
        message = "the first nack stops the pipeline and is written nowhere: that is the default"
        fix = "set window-size and window-nack-threshold, or window-size: 0 to keep every dead letter"
        yield _advise(parsed, where, "lint.first_nack_stops", message, fix)
    elif plain_name(queue.plugin) == "log" and _keeps(queue):
        message, fix = "dead letters are only logged: they can't be found again", "plugin: builtin:file"
        yield _advise(parsed, f"{where}/plugin", "lint.dead_letters_logged", message, fix)
    yield from _path(parsed, queue, where)


def _keeps(queue: DeadLetterQueue) -> bool:
    return queue.window_size == 0 or queue.window_nack_threshold > 0


def _path(parsed: ParsedPipeline, section: ConnectorConfig | DeadLetterQueue, where: str) -> Iterator[Finding]:
    pointer = f"{where}/settings/path"
    written = parsed.written(pointer)
    if plain_name(section.plugin) == "file" and written is not None and written.startswith("/"):
        message = "an absolute path works on this machine only"
        fix = "write it from the project's root, or take it from the environment: ${DATA}/…"
        yield _advise(parsed, pointer, "lint.path_absolute", message, fix)


def _version(parsed: ParsedPipeline, section: ConnectorConfig | ProcessorConfig) -> Iterator[Finding]:
    name, at, _ = section.plugin.partition("@")
    if at:
        pointer = pointers.child(section.where, "plugin")
        message = "the version of a plugin is ignored"
        yield _advise(parsed, pointer, "lint.version_ignored", message, f"write {name}")


def _workers(parsed: ParsedPipeline, processor: ProcessorConfig) -> Iterator[Finding]:
    if processor.workers > 1:
        pointer = pointers.child(processor.where, "workers")
        message = "the number of workers is ignored: Spark's tasks work side by side"
        yield _advise(parsed, pointer, "lint.workers_ignored", message, "remove it")


def _advise(parsed: ParsedPipeline, pointer: str, code: str, message: str, fix: str) -> Finding:
    return parsed.finding(pointer, code, message, severity="warning", got=parsed.written(pointer), fix=fix)
