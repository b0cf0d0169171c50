"""Run the model checker: ``python -m model [short|all|before|rules|mutants] [NAME]``."""

from __future__ import annotations

import sys
import time

from model.case import Case
from model.explore import Result
from model.suite import FORMS, chosen


def main(arguments: list[str]) -> int:
    """Run the cases of a form whose names contain NAME; return 1 where one is not as expected."""
    form, part = (*arguments, "", "")[:2]
    form = form or "short"
    if form not in FORMS:
        print(f"unknown form {form!r}; expected one of {', '.join(FORMS)}", file=sys.stderr)
        return 2
    began, problems, states, count = time.monotonic(), 0, 0, 0
    for case in chosen(form, part):
        result = case.run()
        problems += _report(case, result, show_trace=bool(part))
        states += result.states
        count += 1
    if not count:
        print(f"no case of {form!r} has {part!r} in its name", file=sys.stderr)
        return 2
    print(f"{count} cases, {states} states, {time.monotonic() - began:.0f} s, {problems} not as expected")
    return 1 if problems else 0


def _report(case: Case, result: Result, show_trace: bool) -> bool:
    problem = case.problem(result)
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(result.outcomes.items()))
    found = result.violation or f"nothing found; ends: {outcomes}"
    mark = "FAIL" if problem else "ok"
    print(
        f"{mark:4} {case.group:8} {case.name:55} {result.states:8} states {result.seconds:5.1f} s  {found}", flush=True
    )
    if problem:
        print(f"     {problem}")
    if result.trace and (problem or show_trace):
        print("     " + "\n     ".join(result.trace))
    return bool(problem)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
