"""``pipelines reload``: a running Dagster loads the project anew, with pipelines that were added or removed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from conduit_dagster.cli.outcome import FAILED, Outcome, error_fields
from conduit_dagster.cli.verb import AsJson, perform

Url = Annotated[
    str,
    typer.Option("--url", metavar="URL", envvar="CONDUIT_DAGSTER_URL", help="Where Dagster's web server listens."),
]
_QUERY = """
mutation {
  reloadWorkspace {
    __typename
    ... on Workspace {
      locationEntries {
        name
        locationOrLoadError { __typename ... on PythonError { message } }
      }
    }
    ... on UnauthorizedError { message }
    ... on PythonError { message }
  }
}
"""
_SECONDS = 120.0


def reload(url: Url = "http://127.0.0.1:3000", as_json: AsJson = False) -> None:
    """Have a running Dagster load the project again: needed where pipelines or connectors came or went."""
    perform("pipelines reload", as_json, lambda: _reload(url))


def _reload(url: str) -> Outcome:
    from conduit_dagster.cli.terminal import count
    from conduit_dagster.config.scalars import masked
    from conduit_dagster.recovery.errors import FatalError

    answer, url = _asked(url), masked(url)
    if answer["__typename"] != "Workspace":
        raise FatalError(answer["message"], code="dagster.reload_refused", place=url, fix="look at Dagster's own log")
    locations = [_location(entry) for entry in answer["locationEntries"]]
    facts = {"locations": locations}
    broken = [one for one in locations if one["error"] is not None]
    if not broken:
        return Outcome(f"{count(len(locations), 'code location')} loaded again", facts)
    message = "; ".join(f"{one['name']}: {one['error']}" for one in broken)
    error = FatalError(message, code="dagster.load_failed", place=url, fix="conduit-dagster validate shows mistakes")
    return Outcome(f"not loaded: {message}", facts, FAILED, error_fields(error))


def _location(entry: dict[str, Any]) -> dict[str, Any]:
    loaded = entry["locationOrLoadError"] or {}
    return {"name": entry["name"], "error": loaded.get("message")}


def _asked(url: str) -> dict[str, Any]:
    import json
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    from conduit_dagster.config.scalars import masked
    from conduit_dagster.recovery.errors import TransientError

    body = json.dumps({"query": _QUERY}).encode()
    try:
        request = Request(f"{url.rstrip('/')}/graphql", body, {"Content-Type": "application/json"}, method="POST")
        with urlopen(request, timeout=_SECONDS) as answer:
            return json.load(answer)["data"]["reloadWorkspace"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise TransientError(
            masked(f"Dagster does not answer at {url}: {error}"),
            code="dagster.unreachable",
            fix="start it (make ui), or name its web server: --url http://HOST:PORT",
        ) from error
