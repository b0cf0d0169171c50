"""Reads Go's literals."""

from __future__ import annotations

import re

from conduit_dagster.expressions.errors import ExpressionError
from conduit_dagster.expressions.gotemplate.lexer import Token

_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34}
_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\\"])|x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<wrong>.))",
    re.DOTALL,
)
_INTEGER = re.compile(r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO]?(?:_?[0-7])+|0|[1-9](?:_?[0-9])*)")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
_DIGITS = 400


def text_literal(token: Token) -> str:
    """The value of ``"…"`` or of a raw text between back quotes."""
    if token.kind == "raw":
        return token.text[1:-1].replace("\r", "")
    body = token.text[1:-1]
    pieces: list[bytes] = []
    position = 0
    for found in _ESCAPE.finditer(body):
        pieces += [body[position : found.start()].encode(errors="surrogatepass"), _escaped(found, token)]
        position = found.end()
    pieces.append(body[position:].encode(errors="surrogatepass"))
    return _decoded(b"".join(pieces), token)


def _escaped(found: re.Match[str], token: Token) -> bytes:
    form, value = found.lastgroup, found[found.lastgroup or 0]
    if form == "simple":
        return bytes([_SIMPLE[value]])
    if form in ("hex", "octal"):
        return bytes([int(value, 16 if form == "hex" else 8)])
    code = int(value, 16) if form != "wrong" else -1
    if 0 <= code < 0xD800 or 0xDFFF < code <= 0x10FFFF:
        return chr(code).encode()
    raise ExpressionError(f"Go has no escape {found[0]!r}", token.column + 1 + found.start())


def _decoded(value: bytes, token: Token) -> str:
    try:
        return value.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        raise ExpressionError("the text is not UTF-8", token.column) from None


def number_literal(token: Token) -> int | float:
    """An integer or a float, as Go writes them. Ours are exact: an integer may be longer than 64 bits."""
    text = token.text
    if len(text) > _DIGITS:
        raise ExpressionError(f"the number has more than {_DIGITS} characters", token.column)
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text) and abs(float(text)) != float("inf"):
        return float(text)
    raise ExpressionError(f"not a number: {text}", token.column)


def _integer(text: str) -> int:
    old_octal = re.fullmatch(r"([+-]?)0_?([0-7_]+)", text)
    return int(f"{old_octal[1]}0o{old_octal[2]}" if old_octal else text, 0)
