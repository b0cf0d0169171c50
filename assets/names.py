"""Names in Dagster: ids unchanged where Dagster accepts them, otherwise shortened with a hash."""

from __future__ import annotations

import hashlib
import keyword
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg

from conduit_dagster.builtin_plugins import plain_name
from conduit_dagster.config.folder import dagster_name
from conduit_dagster.config.project import Project
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.secret_values import masked
from conduit_dagster.warm.protocol import FOLDER_TAG

ACKS = "acks"
REPLAYED = "replayed_dead_letters"
GROUP = "conduit"
"""Group of assets that belong to no single pipeline."""
PROJECT_TAG = "conduit/project"
"""Tag of a pipeline's runs: several projects in one Dagster instance may have jobs of the same name."""

NO_RETRIES = {"dagster/max_retries": "0"}
"""Tags of a run that Dagster's own retries leave alone: they know no backoff, and would start it twice."""

_LONGEST = 63
_REFUSED = re.compile(r"[^A-Za-z0-9_.-]")
# names of jobs and ops that Dagster reserves
_RESERVED = re.compile(
    "__ASSET_JOB|arg_dict|bool|conf|config|context|dict|float|input|input_arg_dict|int|meta|output|output_arg_dict|str"
    "|type"
)


def short(text: str) -> str:
    """Return at most 63 characters that tags and asset keys accept; different texts get different names."""
    plain = _REFUSED.sub("_", text)
    if plain == text and len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST - 9]}_{digest}"


def asset_key(pipeline: str, connector: str) -> dg.AssetKey:
    """Return the asset key of a connector, of the dead letters or of the acks."""
    return dg.AssetKey([short(pipeline), short(connector)])


def replayed_key(pipeline: str) -> dg.AssetKey:
    """Return the asset key of replayed dead letters; it is longer than any connector's, so it can't collide."""
    return dg.AssetKey([*asset_key(pipeline, DEAD_LETTERS).path, "replayed"])


def job_name(pipeline: str) -> str:
    """Return the name of the pipeline's job, made from its id."""
    name = dagster_name(pipeline)
    return f"{name}_" if _RESERVED.fullmatch(name) or keyword.iskeyword(name) else name


def run_op_name(job: str) -> str:
    """Return the name of the op of a pipeline's job."""
    return f"{job}__run"


def project_name(project: Project) -> str:
    """Return the project's name for ``PROJECT_TAG``: its folder, with a hash of the folder's path and state store.

    The path alone is not enough: images of several projects often have the same folder.
    """
    place = f"{project.root}\n{masked(project.state_url)}"
    digest = hashlib.sha256(place.encode()).hexdigest()[:8]
    return short(f"{project.root.name}-{digest}")


def job_tags(pipeline: str) -> dict[str, str]:
    """Return the tags of every job of a pipeline."""
    return {"conduit/pipeline": short(pipeline), FOLDER_TAG: str(Path.cwd()), **NO_RETRIES}


def kind(plugin: str) -> str:
    """Return the plugin's name as a kind, which is a tag."""
    return short(plain_name(plugin)).lower()


def code_references(places: Iterable[tuple[str, int, str]]) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Return metadata that links to files, given as path, line and label."""
    with warnings.catch_warnings():
        # beta in Dagster, and the user can't do anything about the warning
        warnings.simplefilter("ignore", dg.BetaWarning)
        references: list[Any] = [
            dg.LocalFileCodeReference(file_path=file, line_number=line, label=label) for file, line, label in places
        ]
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=references)}
