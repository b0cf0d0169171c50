"""The short form of the model checker, one test per configuration; the long form is ``python -m model all``."""

from __future__ import annotations

import pytest

from model.__main__ import main
from model.case import Case
from model.changes.rules import Rule as ChangeRule
from model.protocol.rules import Rule as ProtocolRule
from model.suite import chosen, every

FINDINGS = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P13")


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case.group}: {case.name}") for case in chosen("short")])
def test_finds_what_it_has_to(case: Case) -> None:
    """The old protocol breaks, with its rules it holds, and with one rule missing it breaks again."""
    result = case.run()
    assert not case.problem(result), "\n".join([case.problem(result), result.violation, *result.trace])


def test_every_finding_of_the_audit_is_found_before_and_not_with_the_rules() -> None:
    for group in ("before", "rules"):
        names = [case.name.split()[0] for case in chosen("short") if case.group == group]
        assert [finding for finding in FINDINGS if finding not in names] == []


@pytest.mark.parametrize("rule", ChangeRule)
def test_without_a_rule_for_changes_something_breaks(rule: str) -> None:
    names = [case.name for case in chosen("mutants") if case.expected]
    assert any(rule in name.split() for name in names)


@pytest.mark.parametrize("rule", ProtocolRule)
def test_every_rule_of_the_protocol_is_left_out_once(rule: str) -> None:
    """For a few the README says that nothing breaks without them."""
    names = [case.name for case in chosen("mutants")]
    assert any(rule in name.split() for name in names)


def test_names_are_unique() -> None:
    """A failing configuration can be run alone by its name."""
    names = [(case.group, case.name) for case in every()]
    assert len(names) == len(set(names))


def test_command_prints_one_line_per_case_and_a_trace_of_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["before", "P7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok   before   P7 ") and "wrong letter: holds A1, but A2 was refused" in lines[0]
    assert lines[1].strip() == "START" and "1 cases" in lines[-1]


def test_command_refuses_unknown_forms_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["everything"]) == 2
    assert main(["short", "no such case"]) == 2
    assert "unknown form" in capsys.readouterr().err
