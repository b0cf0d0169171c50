"""``pipelines list`` and ``describe``."""

from __future__ import annotations

from pathlib import Path

from lab.operating import fails_at_14
from lab.scripted import Script
from lab.support import Lab


def test_list_does_not_create_the_state_store(run, project: Path) -> None:
    ran = run("pipelines", "list", "--json")
    (row,) = ran.envelope["result"]["pipelines"]
    assert (row["id"], row["status"], row["starts"], row["findings"]) == ("orders", None, "running", 0)
    assert run("pipelines", "describe", "orders").code == 0
    assert not (project / ".conduit").exists()


def test_list_shows_status_and_first_error_from_the_store(run, failed: Path) -> None:
    (row,) = run("pipelines", "list", "--json").envelope["result"]["pipelines"]
    assert (row["status"], row["error"]["code"]) == ("degraded", "x.y")
    assert "degraded" in run("pipelines", "list").out


def test_list_shows_pipelines_whose_file_is_gone(run, failed: Path) -> None:
    (failed / "pipelines" / "orders.yaml").unlink()
    (row,) = run("pipelines", "list", "--json").envelope["result"]["pipelines"]
    assert (row["id"], row["file"]) == ("orders", None)


def test_list_of_a_folder_without_pipelines_is_empty(run, folder: Path) -> None:
    ran = run("pipelines", "list", "--json")
    assert (ran.code, ran.envelope["result"]["pipelines"]) == (0, [])


def test_list_counts_findings(run, project: Path, pipeline) -> None:
    (project / "pipelines" / "bad.yaml").write_text(pipeline("bad").replace("json.decode", "json.decod"))
    rows = run("pipelines", "list", "--json").envelope["result"]["pipelines"]
    assert {row["id"]: row["findings"] for row in rows} == {"bad": 1, "orders": 0}


def test_describe_tells_everything(run, failed: Path) -> None:
    facts = run("pipelines", "describe", "orders", "--json").envelope["result"]
    assert facts["status"]["now"] == "degraded"
    assert facts["error"]["message"] == "it broke"
    assert facts["delivery"]["strategy"] == "at-least-once"
    assert facts["delivery"]["log"]["chosen"] == "positions"
    assert [one["id"] for one in facts["sources"]] == ["in"]
    assert [one["id"] for one in facts["processors"]] == ["decode"]
    assert facts["dead_letter_queue"]["window_size"] == 0
    assert facts["events"][0]["event"] == "degraded"


def test_describe_in_words(run, failed: Path) -> None:
    ran = run("pipelines", "describe", "orders")
    assert ran.code == 0
    for words in ("degraded", "x.y: it broke", "mend it", "json.decode", "tolerates every nack", "positions"):
        assert words in ran.out


def test_describe_never_shows_what_the_environment_put_in(run, project: Path, pipeline, monkeypatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    text = pipeline().replace("path: ./in.jsonl", "path: './${SECRET}.jsonl'")
    (project / "pipelines" / "orders.yaml").write_text(text)
    ran = run("pipelines", "describe", "orders", "--json")
    assert "hunter2" not in ran.out
    assert ran.envelope["result"]["sources"][0]["settings"] == {"path": "./${SECRET}.jsonl"}


def test_describe_finds_a_pipeline_in_a_file_elsewhere(run, project: Path, pipeline) -> None:
    (project / "other.yaml").write_text(pipeline("other"))
    assert run("pipelines", "describe", "other").code == 2
    assert run("pipelines", "describe", "other", "other.yaml").code == 0


def test_describe_of_an_unknown_id_names_the_nearest(run, project: Path) -> None:
    ran = run("pipelines", "describe", "order", "--json")
    assert ran.code == 2
    assert ran.envelope["error"]["fix"] == "did you mean orders?"


def test_a_store_that_cannot_be_read_is_an_environment_problem(run, project: Path) -> None:
    (project / ".conduit").mkdir()
    (project / ".conduit" / "state.db").write_text("this is no database, and long enough to be seen as none" * 9)
    ran = run("pipelines", "list", "--json")
    assert ran.code == 3
    assert ran.envelope["error"]["code"] == "state.damaged"


def test_describe_tells_what_an_open_step_has_delivered(run, lab: Lab, script: Script) -> None:
    """The counters move with the step; the records lie at the destination before."""
    fails_at_14(lab, script)
    (out,) = run("pipelines", "describe", "p", "--json").envelope["result"]["destinations"]
    assert (out["delivered"], out["open"]["done"], out["open"]["handled"]) == (9, False, 5)
    assert f"5 more of step {out['open']['step']}, so far" in run("pipelines", "describe", "p").out
    script.says()
    assert lab.run().error is None
    (out,) = run("pipelines", "describe", "p", "--json").envelope["result"]["destinations"]
    assert (out["open"], out["delivered"]) == (None, 16)
