"""The options that say which dead letters are meant: the same for every verb."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from conduit_dagster.engine.operate.filters import Filters

Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this letter; may be given often.")]
Node = Annotated[str | None, typer.Option("--node", metavar="ID", help="Nacked by this processor or destination.")]
Code = Annotated[str | None, typer.Option("--code", metavar="CODE", help="With this error code.")]
Source = Annotated[str | None, typer.Option("--source", metavar="ID", help="From this source.")]
Namespace = Annotated[str | None, typer.Option("--namespace", metavar="NAME", help="Of this collection.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="AGE|TIME", help="Newer than 2h, 1d12h or 2026-08-02T10:00.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="AGE|TIME", help="Older than that.")]
Part = Annotated[str | None, typer.Option("--part", metavar="NAME", help="In this file of the archive.")]
Where = Annotated[
    str, typer.Option("--where", metavar="EXPRESSION", help="Whose failed record fits: after.amount > 100.")
]


def _options(
    ids: Ids = None,
    node: Node = None,
    code: Code = None,
    source: Source = None,
    namespace: Namespace = None,
    since: Since = None,
    until: Until = None,
    part: Part = None,
    where: Where = "",
) -> None:
    """The options, by the names of the fields of :class:`Filters`."""


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options, which it gets as ``filters``; for Typer, which looks at signatures."""
    options = inspect.signature(_options, eval_str=True).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        filters = Filters(**{name: given.pop(name) for name in options})
        command(filters=filters, **given)

    own = inspect.signature(command, eval_str=True)
    kept = [one for name, one in own.parameters.items() if name != "filters"]
    every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*options.values(), *kept)]
    run.__signature__ = own.replace(parameters=every)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {one.name: one.annotation for one in every}
    return run
