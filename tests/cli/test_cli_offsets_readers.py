"""Readers of a pipeline's log in ``offsets`` and ``log``, and ``offsets drop``."""

from __future__ import annotations

from typing import Any

import pytest
from lab.chain_lab import downstream, readers, runs, upstream
from lab.operating import error, events, result
from lab.support import Lab

from conduit_dagster.engine.operate import consumer_lag
from conduit_dagster.state.lease import Lease, acquire

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.fixture
def chain(lab: Lab) -> Lab:
    """``p`` has read everything in ``a``; since then ``a`` has logged five more."""
    lab.write("in.jsonl", [{"i": i} for i in range(20)])
    upstream(lab)
    downstream(lab)
    runs(lab, "a", "p")
    lab.write("in.jsonl", [{"i": i} for i in range(20, 25)], mode="a")
    runs(lab, "a")
    return lab


def test_they_stand_beside_the_consumers(run, chain: Lab) -> None:
    rows = {row["id"]: row for row in result(run("offsets", "list", "a", "--json"))["consumers"]}
    assert (rows["p:in"]["kind"], rows["p:in"]["sources"]) == ("reader", [{"id": "in", "offset": 19, "behind": 5}])
    assert rows["first"]["sources"] == [{"id": "in", "offset": 24, "behind": 0}]
    assert "p:in" in run("offsets", "list", "a").out
    assert result(run("offsets", "show", "a", "p:in", "--json"))["offsets"] == [
        {"source": "in", "namespace": "*", "offset": 19, "at_ns": None}
    ]
    (log,) = result(run("log", "current", "a", "--json"))["logs"]
    assert log["readers"] == [{"id": "p:in", "offset": 19}]
    assert "p:in" in run("log", "current", "a").out


def test_positions_show_how_far_the_log_is_ahead(run, chain: Lab) -> None:
    (pipeline,) = [one for one in result(run("positions", "show", "p", "--json"))["pipelines"] if one["id"] == "p"]
    (row,) = pipeline["sources"]
    assert (row["position"], row["lag"], row["lag_unit"]) == (20, 5, "records")


def test_a_reader_is_dropped(run, chain: Lab) -> None:
    ran = run("offsets", "drop", "a", "p:in", "--dry-run")
    assert "would wait for p:in no more: 5 records that it has not read may be compacted" in ran.out
    assert readers(chain) == {"p:in": 20}
    facts = result(run("offsets", "drop", "a", "p:in", "--json"))
    assert (facts["unread"], facts["offset"], facts["dry_run"]) == (5, 19, False)
    assert readers(chain) == {}
    assert error(run("offsets", "drop", "a", "p:in", "--json"))["code"] == "usage.unknown_reader"


def test_one_whose_pipeline_is_gone_is_dropped_too(run, chain: Lab) -> None:
    (chain.root / "pipelines" / "p.yaml").unlink()
    assert "p:in" in run("offsets", "list", "a").out
    assert run("offsets", "drop", "a", "p:in").code == 0
    assert readers(chain) == {}


@pytest.mark.parametrize("words", [("pipelines", "delete", "p", "--force"), ("offsets", "drop", "a", "p:in")])
def test_one_that_another_command_drops_or_deletes_meanwhile_is_unknown(
    run, chain: Lab, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """As where this command is frozen before it has the lease."""

    def later(*args: Any, **more: Any) -> Lease:
        monkeypatch.setattr(consumer_lag, "acquire", acquire)
        assert run(*words).code == 0
        return acquire(*args, **more)

    monkeypatch.setattr(consumer_lag, "acquire", later)
    assert error(run("offsets", "drop", "a", "p:in", "--json"))["code"] == "usage.unknown_reader"
    assert len(events(chain, "reader_dropped")) == ("drop" in words)


def test_unknown_readers_and_running_ones(run, chain: Lab) -> None:
    unknown = error(run("offsets", "drop", "a", "p:inn", "--json"))
    assert (unknown["code"], unknown["fix"]) == ("usage.unknown_reader", "did you mean p:in?")
    with chain.store() as database:
        lease = acquire(database, "p", 0.4)
        try:
            held = error(run("offsets", "drop", "a", "p:in", "--json"))
            assert (held["code"], "stop p first" in held["fix"]) == ("lease.held", True)
        finally:
            lease.release()
    assert readers(chain) == {"p:in": 20}
