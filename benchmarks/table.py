"""The results as Markdown; ``python -m benchmarks.table RESULTS.json PAGE.md`` writes them between a page's markers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.against import AGAINST
from benchmarks.builtin_cases import PROCESSOR
from benchmarks.shapes import SIZES

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
_SHOWN = (50, 150, 300)


def markdown(measures: dict[str, Any]) -> str:
    """Return tables: speed, sizes, other engines, built-in processors, the smallest step, memory, dead letters."""
    tables = (_machine, _speed, _sizes, _against, _builtins, _steps, _memory, _backlog, _letters, _scale)
    parts = [table(measures) for table in tables]
    return "\n\n".join(part for part in parts if part)


def write(page: Path, measures: dict[str, Any]) -> None:
    """Write the tables between the page's markers. Raises ``ValueError`` if it has none."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{markdown(measures)}\n\n{END}{after}")


def _machine(measures: dict[str, Any]) -> str:
    found: dict[str, list[str]] = {}
    for one in measures.values():
        for name, value in one["machine"].items():
            if str(value) not in found.setdefault(name, []):
                found[name].append(str(value))
    dates = sorted({one["at"][:10] for one in measures.values()})
    return ", ".join(f"{name} {' / '.join(values)}" for name, values in found.items()) + f"; {' / '.join(dates)}."


def _speed(measures: dict[str, Any]) -> str:
    titles = (
        "to",
        "records",
        "ours, records/s",
        "beside",
        "records/s",
        "ratio",
        "A/A ours, theirs",
        "CPU s ours, theirs",
    )
    found = [one for name, one in measures.items() if "sides" in one and not name.startswith((PROCESSOR, SIZES))]
    return _table(titles, (row for one in found for row in _rows(one)))


def _rows(one: dict[str, Any]) -> Iterator[Sequence[str]]:
    ours = one["sides"][one["ours"]]
    for name, ratio in one["ratios"].items():
        theirs = one["sides"][name]
        yield (
            one["title"],
            f"{one['records']:,}",
            f"{ours['records_per_second']:,}",
            name,
            f"{theirs['records_per_second']:,}",
            f"**{ratio:.2f}**",
            f"{ours['control']:.2f}, {theirs['control']:.2f}",
            f"{ours['cpu_seconds']:.1f}, {theirs['cpu_seconds']:.1f}",
        )


def _sizes(measures: dict[str, Any]) -> str:
    titles = (
        "input",
        "MB",
        "records",
        "ours, records/s",
        "plain Spark",
        "ratio",
        "A/A ours, theirs",
        "CPU s ours, theirs",
    )
    found = [one for name, one in measures.items() if name.startswith(SIZES)]
    rows = ((one, row) for one in found for row in _rows(one))
    return _table(titles, ([row[0], f"{one['megabytes']:,}", *row[1:3], *row[4:]] for one, row in rows))


def _against(measures: dict[str, Any]) -> str:
    titles = ("beside", "what", "ours", "theirs", "ratio", "A/A ours, theirs", "CPU ours, theirs", "ratio of CPU")
    found = [one for name, one in measures.items() if name.startswith(AGAINST)]
    return _table(titles, (_other(one["engine"], row) for one in found for row in one["rows"]))


def _other(engine: str, row: dict[str, Any]) -> Sequence[str]:
    unit = row["unit"]
    return (
        engine,
        row["what"],
        f"{row['ours']:.2f} {unit}",
        f"{row['theirs']:.2f} {unit}",
        f"**{_times(row['ratio'])}**",
        ", ".join(map(_times, row["controls"])),
        f"{row['cpu_ours']:.2f}, {row['cpu_theirs']:.2f} {unit}",
        _times(row["cpu_ratio"]),
    )


def _times(ratio: float | None) -> str:
    return "too short a run" if ratio is None else f"{ratio:.2f}"


def _builtins(measures: dict[str, Any]) -> str:
    titles = ("processor", "ours, records/s", "beside", "records/s", "ratio", "A/A ours, theirs", "CPU s ours, theirs")
    found = [one for name, one in measures.items() if name.startswith(PROCESSOR)]
    return _table(titles, ([row[0], *row[2:]] for one in found for row in _rows(one)))


def _steps(measures: dict[str, Any]) -> str:
    titles = (
        "a step of one record",
        "p50, ms",
        "min",
        "p95",
        "Spark's smallest Python job, p50",
        "ratio",
        "A/A of Spark",
    )
    rows = (
        (
            kind,
            f"**{one['step_ms']['p50']}**",
            f"{one['step_ms']['min']}",
            f"{one['step_ms']['p95']}",
            f"{one['spark_job_ms']['p50']}",
            f"{one['ratio']:.2f}",
            f"{one['spark_job_ms']['control']:.2f}",
        )
        for kind, one in _kinds(measures, "steps")
    )
    return _table(titles, rows)


def _memory(measures: dict[str, Any]) -> str:
    kinds = list(_kinds(measures, "steps"))
    if not kinds:
        return ""
    shown = _shown([int(steps) for steps in kinds[0][1]["memory"]["python_mb"]])
    titles = ("MB of all Python processes", *(f"after {steps} steps" for steps in shown), "growth per 100 steps")
    rows = (
        (
            kind,
            *(f"{one['memory']['python_mb'][str(steps)]:.0f}" for steps in shown),
            f"**{one['memory']['python_mb_per_100_steps']}**",
        )
        for kind, one in kinds
    )
    return _table(titles, rows)


def _shown(sampled: Sequence[int]) -> list[int]:
    """Return the samples nearest to the wanted ones."""
    return sorted({min(sampled, key=lambda steps: abs(steps - wanted)) for wanted in _SHOWN})


def _backlog(measures: dict[str, Any]) -> str:
    if "backlog" not in measures:
        return ""
    records, times = measures["backlog"]["records"], measures["backlog"]["times"]
    titles = ("peak MB, Python / with Java", f"{records:,} records", f"{records * times:,} records", "ratio of Python")
    rows = (
        (kind, _peak(one["once"]), _peak(one["more"]), f"**{one['ratio']:.2f}**")
        for kind, one in _kinds(measures, "backlog")
    )
    return _table(titles, rows)


def _letters(measures: dict[str, Any]) -> str:
    if "letters" not in measures:
        return ""
    one, records = measures["letters"]["letters"], measures["letters"]["records"]
    titles = (f"`dlq list` of {records:,} dead letters of one step", "s", "peak MB")
    rows = [
        (what, f"**{one[name]['seconds']}**", f"{one[name]['megabytes']}")
        for what, name in (
            ("counts by reason and the newest 20", "list"),
            ("`--by-reason`", "by_reason"),
            ("`--where 'after.amount > 50'`, which reads every record", "where"),
            ("of a pipeline without any", "none"),
        )
    ]
    run = ("the step itself", f"{one['run_seconds']}", f"{one['run_python_mb']:,} (all Python processes)")
    return _table(titles, [*rows, run])


def _scale(measures: dict[str, Any]) -> str:
    found = measures.get("scale", {})
    return "\n\n".join(f"{said}:\n\n{_growth(found[kind])}" for kind, said in _GROWTH.items() if kind in found)


_GROWTH = {
    "files": "Steps of a folder of JSON lines",
    "parquet_files": "Steps of a folder of Parquet files",
    "letters": "Indexing the dead letters of one step",
    "pipelines": "`pipelines list`",
    "quiet": "A pipeline with nothing to do",
    "refused": "Records refused at publishing",
}


def _growth(rows: Sequence[dict[str, Any]]) -> str:
    titles = [name.replace("_", " ") for name in rows[0]]
    return _table(
        titles, [[value if isinstance(value, str) else f"{value:,}" for value in row.values()] for row in rows]
    )


def _peak(one: dict[str, Any]) -> str:
    return f"{one['python_mb']:,} / {one['total_mb']:,}"


def _kinds(measures: dict[str, Any], name: str) -> Iterable[tuple[str, Any]]:
    return measures.get(name, {}).get("kinds", {}).items()


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    head = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    return "\n".join([*head, *lines]) if lines else ""


if __name__ == "__main__":
    write(Path(sys.argv[2]), json.loads(Path(sys.argv[1]).read_text()))
