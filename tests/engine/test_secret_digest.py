"""The effect of a changed secret on a pipeline's digest, by which it is restarted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from lab.support import Lab, destination, processor, source

from conduit_dagster.config import references
from conduit_dagster.config.secret_providers import forget_answers
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.secret_values import hide


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def bound(lab: Lab, setting: str, **more: object) -> BoundPipeline:
    hook = processor("hook", "field.set", field=".Metadata.token", value=setting)
    lab.pipeline(connectors=[source(), destination()], processors=[hook], **more)
    [one] = lab.catalogue().bound
    return one


def test_without_secrets_it_is_what_it_was(lab: Lab) -> None:
    """Otherwise every pipeline would restart with a new version of this package."""
    one = bound(lab, "plain")
    fields = {**msgspec.structs.asdict(msgspec.structs.replace(one.program, root="", replay=None))}
    del fields["secrets"]
    said = one.config.model_dump_json(exclude={"tests", "owners"}).encode()
    assert one.digest == hashlib.sha256(said + b"\0" + msgspec.msgpack.encode(fields)).hexdigest()


def test_another_value_of_a_file_is_another_pipeline(lab: Lab) -> None:
    digests = set[str]()
    for value in ("hunter22", "hunter23", "x", "hunter22\n"):
        (lab.root / "secret").write_text(value)
        digests.add(bound(lab, "${file:secret}").digest)
    assert len(digests) == 3


def test_no_value_goes_into_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.root / "secret").write_text("hunter22")
    read = list[bytes]()

    def sha256(data: bytes = b"") -> object:
        read.append(data)
        return hashlib.new("sha256", data)

    one = bound(lab, "Bearer ${file:secret}", description="${file:secret}")
    monkeypatch.setattr("conduit_dagster.engine.bound_pipeline.hashlib.sha256", sha256)
    assert one.digest
    assert b"field.set" in read[-1] and not any(b"hunter22" in data for data in read)
    assert references.fingerprint("hunter22").encode() in read[-1]


def test_a_provider_may_answer_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["one-token", "another-token"])
    monkeypatch.setattr(references, "ask_provider", lambda name, reference: next(answers))
    first, second = bound(lab, "${vault:x}"), bound(lab, "${vault:x}")
    assert first.program.secrets != second.program.secrets
    assert first.digest == second.digest != bound_to(lab, monkeypatch).digest
    forget_answers()


def bound_to(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> BoundPipeline:
    """The same pipeline with another reference."""
    monkeypatch.setattr(references, "ask_provider", lambda name, reference: "another-token")
    return bound(lab, "${vault:y}")


def test_owners_say_nothing_of_how_it_runs(lab: Lab) -> None:
    assert bound(lab, "a").digest == bound(lab, "a", owners=["team:x", "ana@example.com"]).digest


def test_its_values_are_masked_from_then_on(lab: Lab) -> None:
    bound(lab, "a", description="d")
    assert hide("hunter22") == "hunter22"
    (lab.root / "secret").write_text("hunter22")
    bound(lab, "${file:secret}")
    assert hide("hunter22") == "***"
