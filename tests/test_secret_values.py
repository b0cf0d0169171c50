"""Known secrets are masked in texts, in whatever notation."""

from __future__ import annotations

import base64
import io
import json
from typing import Any, cast

import pytest

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.secret_values import HidingStream, hide, hide_in, hides_any, remember

SECRET = 'p"a/s s\u00e9'


@pytest.mark.parametrize(
    "text",
    [
        "the password %s is wrong",
        "postgresql://me:p%%22a%%2Fs%%20s%%C3%%A9@db",
        "postgresql://me:p%%22a%%2Fs+s%%C3%%A9@db",
        json.dumps({"got": SECRET}).replace("%", "%%"),
        json.dumps({"got": SECRET}, ensure_ascii=False),
        repr("'" + SECRET),
    ],
)
def test_plain_encoded_and_escaped(text: str) -> None:
    assert not hides_any() and hide(SECRET) == SECRET
    remember([SECRET])
    shown = hide(text % () if "%s" not in text else text % SECRET)
    assert "***" in shown and "a/s" not in shown and "s%20s" not in shown and "s+s" not in shown


@pytest.mark.parametrize("ascii_only", [True, False])
def test_escaped_twice(ascii_only: bool) -> None:
    """JSON as text within JSON, as log collectors write it."""
    remember([SECRET])
    inner = json.dumps({"password": SECRET}, ensure_ascii=ascii_only)
    shown = hide(json.dumps({"message": inner}, ensure_ascii=ascii_only))
    assert json.loads(json.loads(shown)["message"]) == {"password": "***"}


def test_percent_encoded_in_small_letters() -> None:
    remember([SECRET])
    assert hide("postgresql://me:p%22a%2fs%20s%c3%a9@db") == "postgresql://me:***@db"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("user", ["", "u", "us", "user"])
@pytest.mark.parametrize("secret", ["hunter22", "hunter22?", "h>?unter~~~~", "longer-than-that-é"])
def test_a_login_in_base64(encode: Any, user: str, secret: str) -> None:
    remember([secret])
    login = encode(f"{user}:{secret}".encode()).decode()
    shown = hide(f"Authorization: Basic {login} is wrong")
    left = shown.removeprefix("Authorization: Basic ").removesuffix(" is wrong")
    assert left.endswith("***") and len(left) <= -(-(len(user) + 1) * 4 // 3) + 3
    assert hide(f"{login[:2]} and base64") == f"{login[:2]} and base64"


def test_the_longest_first_and_the_short_not_at_all() -> None:
    remember(["", "a", "abc", "abcd", "abcdefgh"])
    assert hide("a abc abcd abcdefgh abcde") == "a abc *** *** ***e"


def test_a_line_of_a_key_alone() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0B", "AQEFAASCBKcw", "-----END PRIVATE KEY-----"]
    remember(["\n".join(lines)])
    assert hide("at MIIEvQIBADANBgkqhkiG9w0B") == "at ***"
    assert hide("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"


def test_json_data_stays_json() -> None:
    """A value may look like a part of an escape: the data is masked, not its text."""
    remember(["nine"])
    data = {"nine": ["line\nnine", {"x": "nine"}, 9, None]}
    assert hide_in(data) == {"nine": ["line\n***", {"x": "***"}, 9, None]}


def test_an_error_holds_none() -> None:
    remember(["hunter22"])
    error = FatalError("hunter22 is wrong", code="x.y", place="in hunter22", fix="try hunter22")
    assert "hunter22" not in f"{error} {error.fields()} {error.__notes__}"
    assert (error.message, error.place, error.fix) == ("*** is wrong", "in ***", "try ***")


def test_a_stream_holds_none() -> None:
    remember(["hunter22"])
    out = io.StringIO()
    stream = cast(Any, HidingStream(out))
    assert stream.write("it is hunter22\n") == 10 and stream.getvalue() == "it is ***\n"
