"""Settings of the s3 connector: a file of Conduit's is valid as it is, and what can't be meant is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.support import Lab
from pydantic import ValidationError

from conduit_dagster.connectors.s3.bucket import Bucket, client_for
from conduit_dagster.connectors.s3.destination import S3Destination
from conduit_dagster.connectors.s3.settings import S3DestinationSettings, S3SourceSettings
from conduit_dagster.connectors.s3.source import S3Source
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import ConnectorContext, Dataset

CONDUITS = {
    "aws.accessKeyId": "key", "aws.secretAccessKey": "zq-secret", "aws.bucket": "lake", "aws.region": "eu-central-1",
}  # fmt: skip


def build(lab: Lab, source: dict[str, str], destination: dict[str, str]) -> None:
    connectors = [
        {"id": "in", "type": "source", "plugin": "builtin:s3", "settings": {**CONDUITS, **source}},
        {"id": "out", "type": "destination", "plugin": "builtin:s3", "settings": {**CONDUITS, **destination}},
    ]
    lab.pipeline(connectors=connectors)


def test_a_file_of_conduits_is_valid(tmp_path: Path) -> None:
    """All settings of its connector; those that mean nothing here are named."""
    lab = Lab(tmp_path)
    out = {"prefix": "out", "format": "json", "sdk.record.format": "opencdc/json", "sdk.record.format.options": "a=b"}
    build(lab, {"prefix": "in/", "pollingPeriod": "1s"}, out)
    found = {(one.code, one.severity, one.path.rpartition("/")[2]) for one in lab.catalogue().findings}
    assert found == {("setting.idle", "warning", key) for key in ("sdk.record.format", "sdk.record.format.options")}


@pytest.mark.parametrize(
    ("reads", "writes", "is_told"),
    [
        ({}, {}, True),
        ({}, {"prefix": "out"}, True),
        ({"prefix": "orders"}, {"prefix": "orders/paid"}, True),
        ({"prefix": "out/"}, {"prefix": "out"}, True),
        ({"prefix": "in/"}, {"prefix": "out"}, False),
        ({"prefix": "in/"}, {}, False),
        ({}, {"aws.bucket": "other"}, False),
        ({}, {"aws.endpoint": "http://other"}, False),
    ],
)
def test_a_pipeline_that_reads_what_it_writes_is_warned_of(
    tmp_path: Path, reads: dict[str, str], writes: dict[str, str], is_told: bool
) -> None:
    """Its records would come again without end."""
    lab = Lab(tmp_path)
    build(lab, reads, {"format": "json", **writes})
    assert [one.code for one in lab.catalogue().findings] == ["source.own_output"] * is_told


@pytest.mark.parametrize(
    "more",
    [
        {"aws.bucket": ""},
        {"aws.secretAccessKey": ""},
        {"aws.accessKeyId": ""},
        {"aws.bucket": "s3://lake"},
        {"aws.bucket": "lake/orders"},
        {"aws.region": "eu central"},
        {"aws.accessKeyId": "key\n"},
        {"aws.secretAccessKey": "zq-secret\n"},
        {"aws.endpoint": "minio:9000"},
        {"aws.endpoint": "http://my_minio:9000"},
        {"aws.endpoint": "http://minio:port"},
        {"aws.endpoint": "http://minio:99999"},
        {"aws.endpoint": "http://mi nio"},
        {"aws.endpoint": "http://key:zq-secret@minio:9000"},
        {"pollingPeriod": "0s"},
        {"format": "csv"},
    ],
)
def test_what_can_not_be_meant_is_refused(more: dict[str, str]) -> None:
    kind: Any = S3DestinationSettings if "format" in more else S3SourceSettings
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({**CONDUITS, **more})
    assert "zq-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {"aws.endpoint": "http://[::1]:9000"},
        {"aws.endpoint": "https://x.supabase.co/storage/v1/s3"},
        {"aws.endpoint": "http://10.0.0.1"},
        {"aws.endpoint": "http://MinIO.default.svc.:9000/"},
        {"aws.bucket": "arn:aws:s3:eu-west-1:123456789012:accesspoint/mine"},
        {"aws.bucket": "Old_Bucket.name"},
        {"aws.region": ""},
    ],
)
def test_what_the_client_takes_is_taken(more: dict[str, str]) -> None:
    settings = S3SourceSettings.model_validate({**CONDUITS, **more})
    assert client_for(settings.login) is not None


def test_an_address_of_the_environment_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://my_minio:9000")
    client_for.cache_clear()
    with pytest.raises(TransientError, match="can't list s3://lake: Invalid endpoint: http://my_minio:9000") as caught:
        Bucket(S3SourceSettings.model_validate(CONDUITS)).check()
    assert "AWS_ENDPOINT_URL" in str(caught.value.fix)


def test_the_secret_is_not_shown() -> None:
    assert "zq-secret" not in repr(S3SourceSettings.model_validate(CONDUITS))


@pytest.mark.parametrize(("prefix", "name"), [("", "/"), ("orders", "orders"), ("/a/b/", "a/b/")])
def test_lineage_tools_know_the_data_set(tmp_path: Path, prefix: str, name: str) -> None:
    """OpenLineage's names have no empty one: the bucket itself is ``/``."""
    context = ConnectorContext("p", "x", str(tmp_path), Clock(7))
    source = S3Source(S3SourceSettings.model_validate({**CONDUITS, "prefix": prefix}), context)
    out = S3Destination(S3DestinationSettings.model_validate({**CONDUITS, "prefix": prefix, "format": "json"}), context)
    assert source.dataset == Dataset("s3://lake", name)
    assert out.dataset == Dataset("s3://lake", name.rstrip("/") or "/")
    assert Dataset("s3://lake", name).uri == f"s3://lake/{name.removeprefix('/')}"


def test_the_address_of_a_destination_tells_every_two_folders_apart(tmp_path: Path) -> None:
    """By it a run knows that the object of a published step is not to be looked for in another folder."""
    context, folders = ConnectorContext("p", "x", str(tmp_path), Clock(7)), dict[str, set[str]]()
    for prefix in ("", "/", "a", "a/", "/a", "//a", "a//", "/a/"):
        settings = S3DestinationSettings.model_validate({**CONDUITS, "prefix": prefix, "format": "json"})
        out = S3Destination(settings, context)
        folders.setdefault(out.address, set()).add(out.objects_written[1])
    assert [*folders.values()] == [{""}, {"/"}, {"a/"}, {"/a/"}, {"//a/"}, {"a//"}]
