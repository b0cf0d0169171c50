"""Two example commands per verb, shown below its help. Tests check that each command exists."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "run": ("run", "run pipelines/orders.yaml --once"),
    "validate": ("validate", "validate pipelines/orders.yaml --strict"),
    "lint": ("lint", "lint pipelines/orders.yaml"),
    "dry-run": ("dry-run pipelines/orders.yaml", "dry-run pipelines/orders.yaml --records 3 --pipeline orders"),
    "test": ("test", "test pipelines/orders.yaml --only adult"),
    "doctor": ("doctor --deep", "doctor pipelines/orders.yaml"),
    "init": ("init shop", "init processor trim.text"),
    "metrics": ("metrics", "metrics --serve 127.0.0.1:9400"),
    "top": ("top", "top --once --json"),
    "pipelines list": ("pipelines list --lag", "pipelines list --no-lag --json"),
    "pipelines describe": ("pipelines describe orders", "pipelines describe orders elsewhere/orders.yaml"),
    "pipelines start": ("pipelines start orders", "pipelines start orders --accept-new-state"),
    "pipelines stop": ("pipelines stop orders", "pipelines stop orders --force"),
    "pipelines delete": ("pipelines delete orders --dry-run", "pipelines delete orders"),
    "pipelines history": ("pipelines history orders", "pipelines history orders --since 2h"),
    "pipelines reload": ("pipelines reload", "pipelines reload --url http://dagster:3000"),
    "log current": ("log current orders", "log current orders --json"),
    "log oldest": ("log oldest orders", "log oldest orders --json"),
    "log show": ("log show orders --from 9 --to 15", "log show orders --source in --limit 5 --json"),
    "log compact": ("log compact orders --dry-run", "log compact orders --source in"),
    "log export": ("log export orders orders.log", "log export orders orders.log --from 0 --to 999"),
    "log import": ("log import orders orders.log --dry-run", "log import orders orders.log --as raw"),
    "offsets list": ("offsets list orders", "offsets list orders --json"),
    "offsets show": ("offsets show orders warehouse", "offsets show orders warehouse --json"),
    "offsets mark": ("offsets mark orders warehouse 14", "offsets mark orders warehouse --offset 12 --offset 14-15"),
    "offsets step": ("offsets step orders warehouse", "offsets step orders warehouse --dry-run"),
    "offsets drop": ("offsets drop orders totals:in --dry-run", "offsets drop orders totals:in"),
    "positions show": ("positions show", "positions show orders"),
    "positions rewind": ("positions rewind orders in --to-start", "positions rewind orders --to-offset 10 --dry-run"),
    "dlq list": ("dlq list orders --by-reason", "dlq list orders --since 2h --where 'after.amount > 100'"),
    "dlq show": ("dlq show orders/17.3", "dlq show orders/17.3 --json"),
    "dlq export": ("dlq export orders letters.jsonl", "dlq export orders letters.jsonl --since 1d"),
    "dlq replay": (
        "dlq replay orders --dry-run",
        "dlq replay orders --id orders/17.3 --from node --set '.Payload.After.amount=0'",
    ),
    "dlq discard": (
        "dlq discard orders --code field.unsuitable --note 'test data'",
        "dlq discard orders --note 'test data' --dry-run",
    ),
    "spark start": ("spark start", "spark start --json"),
    "spark stop": ("spark stop", "spark stop --json"),
    "spark status": ("spark status", "spark status --json"),
    "connectors list": ("connectors list", "connectors list --json"),
    "connectors describe": ("connectors describe postgres", "connectors describe file --json"),
    "processors list": ("processors list", "processors list --json"),
    "processors describe": ("processors describe field.set", "processors describe csv.decode"),
}


def epilog(verb: str) -> str:
    """Return the text below a verb's help; line breaks are kept."""
    lines = "\n".join(f"  conduit-dagster {example}" for example in EXAMPLES[verb])
    return f"\b\nExamples:\n{lines}"
