"""Claims of launches by several code locations."""

from __future__ import annotations

import sqlalchemy as sa
from lab.waiting import at_once

from conduit_dagster.state.launches import LaunchClaim, claim_launch

ONE, TWO = LaunchClaim("run", "one"), LaunchClaim("run", "two")


def test_claims_at_the_same_moment_have_one_winner(database: sa.Engine) -> None:
    found = at_once(lambda number: claim_launch(database, "p", "start", LaunchClaim("run", f"{number}")), 8)
    assert len(set(found)) == 1 and found[0].run_key == "run"
    later = at_once(lambda number: claim_launch(database, "p", "start", LaunchClaim("later", f"{number}")), 8)
    assert len(set(later)) == 1 and later[0].run_key == "later"


def test_of_those_that_see_a_claim_expire_one_takes_it(database: sa.Engine) -> None:
    claim_launch(database, "p", "start", ONE)
    found = at_once(lambda number: claim_launch(database, "p", "start", LaunchClaim("run", f"{number}"), ONE), 8)
    assert len(set(found)) == 1 and found[0] != ONE


def test_a_claim_holds_for_one_run_of_one_kind_and_pipeline(database: sa.Engine) -> None:
    assert claim_launch(database, "p", "start", ONE) == ONE
    assert claim_launch(database, "p", "start", TWO) == ONE
    assert claim_launch(database, "p", "start", ONE) == ONE
    assert claim_launch(database, "p", "restart", TWO) == TWO
    assert claim_launch(database, "other", "start", TWO) == TWO
    assert claim_launch(database, "p", "start", TWO._replace(run_key="next")) == TWO._replace(run_key="next")
    assert claim_launch(database, "p", "start", ONE) == ONE
