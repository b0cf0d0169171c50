"""One-line summaries of operations, for the command line and Dagster."""

from __future__ import annotations

import json
from typing import Any

Facts = dict[str, Any]


def start_summary(pipeline: str, asked: bool) -> str:
    """Describe a requested start; ``asked`` False: the pipeline already runs."""
    where = "Dagster's lifecycle sensor starts it; without a daemon: conduit-dagster run"
    return f"{pipeline}: asked to start ({where})" if asked else f"{pipeline} runs already"


def stop_summary(pipeline: str, stopped: bool, status: str) -> str:
    """Describe a stop; ``stopped`` False: the pipeline was not running. By force its status may be ``degraded``."""
    return f"{pipeline}: {status}" if stopped else f"{pipeline} was stopped already"


def delete_summary(facts: Facts) -> str:
    """Describe a deletion. ``facts``: those of ``delete``."""
    would = "would be " if facts["dry_run"] else ""
    count = len(facts["sources"])
    parts = [f"its state ({count} source{'' if count == 1 else 's'}), log, dead letters", *facts["removed"]]
    text = f"{facts['pipeline']}: {would}deleted: {', '.join(parts)}"
    lost = f"; {would}lost: {'; '.join(facts['lost'])}" if facts["lost"] else ""
    left = f"; left on the server: {'; '.join(facts['left'])}" if facts["left"] else ""
    again = f"; {facts['file']} still names it: pipelines start begins anew" if facts["file"] else ""
    return text + lost + left + again


def rewind_summary(facts: Facts) -> str:
    """Describe a rewind. ``facts``: those of ``rewind``, and ``dry_run``."""
    name = f"{facts['pipeline']}: {facts['source']}"
    if not facts["changed"]:
        return f"{name} stands there already; nothing changed"
    verb = "would go on" if facts["dry_run"] else "goes on"
    lost = f"; {facts['skipped']:,} {facts['skipped_unit']} are skipped" if facts["skipped"] else ""
    return f"{name} {verb} from {on_one_line(facts['now'])}, generation {facts['generation']}{lost}{_twice(facts)}"


def _twice(facts: Facts) -> str:
    many = facts["open_letters"]
    if not many:
        return ""
    letters = "1 open dead letter stays" if many == 1 else f"{many:,} open dead letters stay"
    return f"; {letters}: a replay would deliver a second time what is read again"


def send_again_summary(facts: Facts) -> str:
    """Describe a range to be sent again. ``facts``: those of ``send_again``, and ``dry_run``."""
    if not facts["changed"]:
        return f"{sent_range(facts)}; nothing changed"
    return f"{sent_range(facts)} with the next run; nothing else changes"


def sent_range(facts: Facts) -> str:
    """Describe the range that one destination is sent again. ``facts``: as above."""
    name = f"{facts['pipeline']}: {facts['destination']}"
    if not facts["changed"]:
        return f"{name}: there is nothing to send again in that range of {facts['source']}"
    verb = "would be sent" if facts["dry_run"] else "is sent"
    if facts["first"] == facts["upto"]:
        return f"{name} {verb} nothing of {facts['source']} again: what was left of it is given up"
    offsets = f"offsets {facts['first']} to {facts['upto'] - 1} of {facts['source']}"
    return f"{name} {verb} {offsets} again ({entry_count(facts['records'])})"


def compact_summary(facts: Facts) -> str:
    """Describe a compaction. ``facts``: ``pipeline``, ``logs`` as of ``compact``, and ``dry_run``."""
    gone, segments = (sum(row[name] for row in facts["logs"]) for name in ("entries", "segments"))
    verb = "would go" if facts["dry_run"] else "are gone"
    return f"{facts['pipeline']}: {entry_count(gone)} of {segments} segments {verb}"


def unusable_letters(facts: Facts) -> str:
    """Describe the letters that a replay does not send, to be appended. ``facts``: those of ``replay``."""
    closed, left = facts["closed"], facts["unusable"]
    verb = "would be" if facts["dry_run"] else "is" if closed == 1 else "are"
    text = f", {closed:,} {verb} closed: no destination of the file misses them" if closed else ""
    return (
        f"{text}, {left:,} can't be sent again: not in the archive, or without their source in the file"
        if left
        else text
    )


def letters_to_send(facts: Facts) -> int:
    """Return how many letters a replay would send. ``facts``: those of a dry run of ``replay``."""
    return max(0, facts["letters"] - facts["unusable"] - facts["closed"])


def held_letters(facts: Facts) -> str:
    """Describe the letters that a discard leaves to a replay, to be appended. ``facts``: those of ``discard``."""
    held = facts["held"]
    return f", {held:,} stay in the prepared step of a replay that did not end" if held else ""


def entry_count(entries: int) -> str:
    """Format a number of log entries."""
    return "1 entry" if entries == 1 else f"{entries:,} entries"


def on_one_line(position: Any) -> str:
    """Return a position as JSON on one line."""
    return json.dumps(position, ensure_ascii=False)
