"""Human-readable descriptions of pipelines, and examples of processors."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from conduit_dagster.cli.description import short
from conduit_dagster.cli.pipeline_list import is_abandoned
from conduit_dagster.cli.progress import known_lag
from conduit_dagster.cli.terminal import print_error, styled
from conduit_dagster.readable import readable
from conduit_dagster.record import Record
from conduit_dagster.sdk import Example

if TYPE_CHECKING:
    from rich.console import Console

Facts = Mapping[str, Any]


def show_description(console: Console, facts: Facts) -> None:
    """Print all sections except empty ones."""
    _head(console, facts)
    for name in ("sources", "processors", "destinations"):
        _section(console, name, (line for one in facts[name] for line in _part(one)))
    _section(console, "dead-letter queue", _queue(facts["dead_letter_queue"]))
    _section(console, "newest dead letters", (_letter(row) for row in facts["dead_letters"]))
    _section(console, "newest events", (f"{row['at']}  {short(row['says'], 200)}" for row in facts["events"]))
    found = ("{line}:{column} {severity} {code}: {message}".format_map(row) for row in facts["findings"])
    _section(console, "findings", found)


def _head(console: Console, facts: Facts) -> None:
    status = facts["status"]
    now = status["now"] or "never ran"
    where = f"{facts['file']}:{facts['line']}"
    if not facts["file"]:
        delete = f"conduit-dagster pipelines delete {shlex.quote(facts['id'])}"
        where = f"no file any more; what is kept of it goes with: {delete}"
    console.print(Text.assemble((facts["id"], "bold"), f"  {where}"))
    if facts["description"]:
        console.print(f"  {facts['description']}")
    console.print("  status    ", styled(now), _status_note(status), sep="")
    if facts["delivery"]:
        _configured(console, facts)
    if facts["error"]:
        print_error(console, dict(facts["error"]), "  ")


def _configured(console: Console, facts: Facts) -> None:
    delivery = facts["delivery"]
    console.print(f"  delivery  {delivery['strategy']}, fan-in {delivery['fan_in']}")
    log = delivery["log"]
    console.print(f"  log       {log['chosen'] or 'not chosen'}: {log['why']}")
    console.print(f"  trigger   {', '.join(map(str, facts['trigger'].values()))}")
    if facts["not_yet"]:
        console.print(f"  refused   {', '.join(facts['not_yet'])}: not there yet")


def _status_note(status: Facts) -> str:
    notes = [f"by the {status['reason']}"] if status["reason"] else []
    if status["since"]:
        notes.append(f"last change {status['since']}")
    if is_abandoned(status["now"], status["owner_alive"], status["restart"]):
        notes.append("its process is gone; the next run continues where it was")
    if restart := status["restart"]:
        due = f" is due at {restart['at']}" if restart["at"] else " is under way"
        notes.append(f"restart {restart['attempt']}{due}")
    if status["starts"]:
        notes.append(f"its file says {status['starts']}")
    return f" ({'; '.join(notes)})"


def _section(console: Console, title: str, lines: Iterable[str]) -> None:
    content = list(lines)
    if content:
        console.print(Text(title, style="bold"))
    for line in content:
        console.print(f"  {line}")


def _part(one: Facts) -> Iterable[str]:
    """Yield the lines of a connector or processor: its settings and, if any, its counters."""
    yield f"{one['id']}  {one['plugin'] or ''}{_restriction(one)}".rstrip()
    yield from (f"  {key}: {short(value)}" for key, value in one["settings"].items())
    for inner in one.get("processors", ()):
        yield from (f"  {line}" for line in _part(inner))
    if "position" in one:
        yield from _source_numbers(one)
    if "delivered" in one:
        yield f"  delivered {one['delivered']:,}{_unfinished(one.get('open'))}"


def _unfinished(delivery: Facts | None) -> str:
    if delivery is None:
        return ""
    return f"; {delivery['delivered']:,} more of step {delivery['step']} so far: counted when its delivery is done"


def _restriction(one: Facts) -> str:
    namespace = f", namespace {one['namespace']}" if one["namespace"] else ""
    condition = f", if {one['condition']}" if one.get("condition") else ""
    return namespace + condition


def _source_numbers(one: Facts) -> Iterable[str]:
    yield (
        f"  {one['records']:,} read, {one['acked']:,} acked (of them {one['filtered']:,} filtered), "
        f"{one['nacked']:,} nacked"
    )
    if one["columnar"]:
        yield "  its rows stay columns: nothing needs documents"
    if one["position"] is not None:
        yield f"  position {short(one['position'])}"
    if one["lag"] is not None:
        yield f"  lag {known_lag(one)}"
    if one["undelivered"]:
        yield f"  {one['undelivered']:,} in the log, not delivered yet"


def _queue(queue: Facts) -> Iterable[str]:
    if queue["plugin"]:
        yield f"{queue['plugin']}  {_tolerance(queue['window_size'], queue['window_nack_threshold'])}"
    yield from (f"  {key}: {short(value)}" for key, value in queue["settings"].items())
    yield f"  delivered {queue['delivered']:,}"


def _tolerance(size: int, threshold: int) -> str:
    if size == 0:
        return "tolerates every nack"
    if threshold == 0:
        return "any nack stops the pipeline"
    return f"tolerates {threshold} nacks in the last {size} records, one more stops the pipeline"


def _letter(row: Facts) -> str:
    record = f"{row['source']} offset {row['offset']}"
    return f"{row['id']}  {row['state']}  {row['at']}  {record}  {row['node']}  {row['code']}: {short(row['message'])}"


@dataclass(frozen=True)
class ExampleText:
    """Input and output of an example, each record as JSON without its empty parts."""

    title: str
    settings: Mapping[str, str]
    given: str
    gives: tuple[str, ...]


def example_text(example: Example) -> ExampleText:
    """Return an example as shown in the reference."""
    gives = example.gives
    records = gives if isinstance(gives, list) else [gives] if isinstance(gives, Record) else None
    if records is None:
        said = f"nacked: {gives}" if isinstance(gives, str) else "dropped"
        return ExampleText(example.title, dict(example.settings), _text(example.given), (said,))
    return ExampleText(
        example.title, dict(example.settings), _text(example.given), tuple(_text(record) for record in records)
    )


def _text(record: Record) -> str:
    return json.dumps(readable(record), ensure_ascii=False)
