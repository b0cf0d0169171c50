"""Names in Dagster: ids as they are wherever Dagster takes them, shortened with a hash wherever not."""

from __future__ import annotations

import hashlib
import keyword
import re

import dagster as dg

from conduit_dagster.config.folder import dagster_name
from conduit_dagster.connectors.registry import plain_name
from conduit_dagster.engine.compiled import DEAD_LETTERS

ACKS = "acks"
GROUP = "conduit"
"""The group of what belongs to no single pipeline."""

_LONGEST = 63
_REFUSED = re.compile(r"[^A-Za-z0-9_.-]")
# Dagster keeps these for itself as names of jobs and ops
_RESERVED = re.compile(
    "arg_dict|bool|conf|config|context|dict|float|input|input_arg_dict|int|meta|output|output_arg_dict|str|type"
)


def short(text: str) -> str:
    """At most 63 characters that tags and asset keys take; another text never gets the same name."""
    plain = _REFUSED.sub("_", text)
    if plain == text and len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST - 9]}_{digest}"


def asset_key(pipeline: str, connector: str) -> dg.AssetKey:
    """The key of a connector, of the dead letters or of the acks."""
    return dg.AssetKey([short(pipeline), short(connector)])


def replayed_key(pipeline: str) -> dg.AssetKey:
    """The key of what dead letters became; longer than any connector's, so that none has it."""
    return dg.AssetKey([*asset_key(pipeline, DEAD_LETTERS).path, "replayed"])


def job_name(pipeline: str) -> str:
    """The pipeline's id as the name of its job."""
    name = dagster_name(pipeline)
    return f"{name}_" if _RESERVED.fullmatch(name) or keyword.iskeyword(name) else name


def kind(plugin: str) -> str:
    """The plugin's name as a kind, which is a tag."""
    return short(plain_name(plugin)).lower()
