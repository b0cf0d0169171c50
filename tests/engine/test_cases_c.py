"""CASES.md, section C: offsets, acks of single records, redelivery one record at a time."""

from __future__ import annotations

import threading

from lab.operating import NAMESPACE, after_bulk_error, build, code_of, offsets
from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, processor, queue, source

from conduit_dagster.engine.stop import StopFlag


def stopped_after(seconds: float) -> StopFlag:
    """Return the flag of a run that is stopped by force if it has not ended by then."""
    stop = StopFlag()
    timer = threading.Timer(seconds, stop.force)
    timer.daemon = True
    timer.start()
    return stop


def partly_acked(lab: Lab, script: Script) -> None:
    """C1: c0 acks 1, 4, 6, 4, 7, 10, 12 and c1 acks 4, 5, 7, 13 of the records 0 to 15."""
    build(lab, 16, scripted("c0"), scripted("c1"))
    script.says("c0", acks=[[v, "upto"] for v in (1, 4, 6, 4, 7, 10, 12)])
    script.says("c1", acks=[[v, "upto"] for v in (4, 5, 7, 13)])
    assert code_of(lab.run()) == "delivery.unacked"
    script.sent("c0")
    script.sent("c1")


def test_c01_a_late_ack_does_not_move_an_offset_back(lab: Lab, script: Script) -> None:
    partly_acked(lab, script)
    assert offsets(lab) == {"c0": 12, "c1": 13}


def test_c02_a_restart_sends_exactly_what_is_missing(lab: Lab, script: Script) -> None:
    """Nothing new is read before both have caught up."""
    partly_acked(lab, script)
    lab.write("in.jsonl", [{"i": 16}], mode="a")
    script.says("c0", outage=[13])
    script.says("c1")
    assert code_of(lab.run()) == "file.error"
    assert script.sent("c0") == [[13, 14, 15]]
    assert script.sent("c1") == [[14, 15]]
    assert offsets(lab) == {"c0": 12, "c1": 15}
    script.says("c0")
    assert lab.run().error is None
    assert script.sent("c0") == [[13, 14, 15], [16]]
    assert script.sent("c1") == [[16]]
    assert offsets(lab) == {"c0": 16, "c1": 16, "dead_letters": 16}


def test_c05_a_bulk_error_stops_the_run_and_moves_nothing(lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)


def test_c06_then_one_record_at_a_time_and_then_bulk_again(lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    lab.write("in.jsonl", [{"i": 16}, {"i": 17}], mode="a")
    script.says()
    assert lab.run().error is None
    assert script.sent() == [[9], [10], [11], [12], [13], [14], [15], [16, 17]]
    assert offsets(lab)["out"] == 17


def test_c07_a_record_that_goes_on_failing_stops_the_run_before_it(lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    result = lab.run()
    assert code_of(result) == "delivery.record_failed"
    assert result.error is not None
    assert "offset 14" in (result.error.place or "")
    assert script.sent() == [[9], [10], [11], [12], [13], [14]]
    assert offsets(lab)["out"] == 13
    assert code_of(lab.run()) == "delivery.record_failed"
    assert script.sent() == [[14]]
    assert offsets(lab)["out"] == 13


def test_bisect_finds_the_record_with_fewer_writes(lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery={"redelivery": "bisect"})
    assert code_of(lab.run()) == "delivery.record_failed"
    assert script.sent() == [[9, 10, 11], [12, 13, 14, 15], [12, 13], [14, 15], [14]]
    assert offsets(lab)["out"] == 13
    script.says()
    assert lab.run().error is None
    assert script.sent() == [[14], [15]]


def test_c11_destinations_with_namespaces_reach_the_end_independently(lab: Lab, script: Script) -> None:
    lab.write("in.jsonl", [{"i": i, "c": c} for i, c in enumerate("xabacbxb")])
    lab.pipeline(
        connectors=[
            source(processors=[DECODE, NAMESPACE]),
            scripted("one", namespace="^(a|c)$"),
            scripted("two", namespace="b|c"),
        ],
        **{"dead-letter-queue": queue()},
    )
    assert lab.run().error is None
    assert script.values("one") == [1, 3, 4]
    assert script.values("two") == [2, 4, 5, 7]
    assert offsets(lab) == {"one": 7, "two": 7, "dead_letters": 7}


def test_c12_an_offset_waits_for_the_record_before_a_filtered_one(lab: Lab, script: Script) -> None:
    build(lab, 15, processors=[DECODE, processor("skip", "filter", "after.i == 14")])
    script.says(acks=[[12, "upto"]])
    assert code_of(lab.run()) == "delivery.unacked"
    assert offsets(lab)["out"] == 12
    script.says()
    assert lab.run().error is None
    assert offsets(lab)["out"] == 14


def test_c13_only_what_its_namespace_has_not_acked_is_sent_again(lab: Lab, script: Script) -> None:
    """A and C are acked to their ends; in B record 24 is not."""
    names = {24: "B", 23: "B", 26: "A", 25: "A", 27: "C"}
    lab.write("in.jsonl", [{"i": i, "c": names.get(i, "ABC"[i % 3])} for i in range(28)])
    lab.pipeline(connectors=[source(processors=[DECODE, NAMESPACE]), scripted()], **{"dead-letter-queue": queue()})
    script.says(acks=[[v, "only"] for v in range(28) if v != 24])
    assert code_of(lab.run()) == "delivery.unacked"
    script.sent()
    assert (offsets(lab, "A"), offsets(lab, "B"), offsets(lab, "C")) == ({"out": 26}, {"out": 23}, {"out": 27})
    script.says()
    assert lab.run().error is None
    assert script.sent() == [[24]]
    assert offsets(lab)["out"] == 27


def test_a_record_that_gets_no_ack_when_it_is_sent_alone_ends_the_run(lab: Lab, script: Script) -> None:
    """It was sent again at once, by a job of its own each time, without end and without an error."""
    after_bulk_error(lab, script)
    script.says(acks=[[9, "only"], [10, "only"]])
    assert code_of(lab.run(stop=stopped_after(60))) == "delivery.unacked"
    assert script.values() == [9, 10, 11]
    script.says()
    assert lab.run().error is None
    assert script.values() == list(range(11, 16))


def test_a04_acks_out_of_order_reach_the_source_in_order(lab: Lab, script: Script) -> None:
    """The destination acknowledges backwards; record 4 is filtered before 3 is done."""
    build(lab, 11, processors=[DECODE, processor("skip", "filter", "after.i == 4")])
    script.says(acks=[[v, "only"] for v in range(10, 0, -1)])
    result = lab.run()
    assert code_of(result) == "delivery.unacked"
    assert result.progress.acked == 0
    assert "out" not in offsets(lab)
    script.sent()
    script.says(acks=[[v, "only"] for v in range(10, -1, -1)])
    result = lab.run()
    assert result.error is None
    # nothing behind the first one was durable, however many were acked
    assert script.sent() == [[0, 1, 2, 3, 5, 6, 7, 8, 9, 10]]
    assert result.progress.read == 11
    assert offsets(lab)["out"] == 10
    assert lab.run().progress.read == 0


def test_refused_records_are_dead_letters_in_order_and_the_others_arrive(lab: Lab, script: Script) -> None:
    build(lab, 10, scripted("a"), scripted("b"))
    script.says("a", refuse=[3, 5])
    script.says("b", refuse=[5, 6])
    result = lab.run()
    assert result.error is None
    assert script.values("a") == list(range(10))
    letters = lab.letters()
    # 5 is refused by both and makes one dead letter
    assert sorted(after["i"] for _, _, after in letters) == [3, 5, 6]
    assert result.progress.nacked == 3
    assert result.progress.dead_lettered == 3
    assert lab.run().progress.read == 0


def test_a_refusal_that_the_window_does_not_accept_stops_the_run(lab: Lab, script: Script) -> None:
    """The step stays prepared, and nothing of it is acked (DELIVERY.md, When publishing fails)."""
    build(lab, 10, **{"dead-letter-queue": queue(5, 1)})
    script.says(refuse=[3, 5])
    result = lab.run()
    assert result.error is not None
    assert (result.error.code, result.error.fatal) == ("nacks.threshold_exceeded", True)
    assert [after["i"] for _, _, after in lab.letters()] == [3]
    script.sent()
    script.says()
    assert lab.run().error is None
    assert script.values() == list(range(5, 10))
    assert [after["i"] for _, _, after in lab.letters()] == [3]


def test_a_refusal_without_a_queue_is_transient_and_the_record_is_tried_again(lab: Lab, script: Script) -> None:
    """B7: a destination's nack with the queue disabled is recovered."""
    build(lab, 4, **{"dead-letter-queue": queue(1, 0)})
    script.says(refuse=[2])
    assert code_of(lab.run()) == "scripted"
    script.sent()
    script.says()
    assert lab.run().error is None
    assert script.values() == [2, 3]
    assert lab.lines("dead.jsonl") == []


def test_d11_d12_every_attempt_has_the_same_hash_and_keys(lab: Lab, script: Script) -> None:
    """D11, D12: three attempts of one step, then the next step."""
    build(lab, 3)
    script.says(outage=[0])
    for _ in range(2):
        lab.run()
    script.says()
    assert lab.run().error is None
    lab.write("in.jsonl", [{"i": 3}], mode="a")
    assert lab.run().error is None
    rows = lab.documents("out.sent")
    first, second, third, following = rows
    assert first["hash"] == second["hash"] == third["hash"] != following["hash"]
    assert first["keys"] == third["keys"]
    assert len({tuple(key) for row in (first, following) for key in row["keys"]}) == 4
