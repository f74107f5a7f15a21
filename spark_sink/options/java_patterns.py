"""Java's regular expressions, translated into what Python and the servers (PCRE) both read.

Debezium's lists are patterns of Java. Most constructs mean the same everywhere. One that differs in
Python or PCRE is translated, or refused with its name. References to groups are refused, too,
because the servers get all patterns of a list as one. Classes such as `\\w` are ASCII, as in Java.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_CLASSES = {
    "Lower": "a-z", "Upper": "A-Z", "ASCII": "\\x00-\\x7f", "Alpha": "a-zA-Z", "Digit": "0-9",
    "Alnum": "a-zA-Z0-9", "Punct": "!-/:-@\\[-`{-~", "Graph": "!-~", "Print": " -~",
    "Blank": " \\t", "Cntrl": "\\x00-\\x1f\\x7f", "XDigit": "0-9a-fA-F",
    "Space": " \\t\\n\\x0b\\f\\r",
}  # fmt: skip
"""Java's POSIX classes."""
_PIECE = re.compile(
    r"""
    \\Q (?P<literal> .*?) (?: \\E | \Z)           # only outside of a class
    | \\u (?P<unicode> [0-9A-Fa-f]{4})
    | \\ (?P<same> x[0-9A-Fa-f]{2} | [dDwWsSbBtnrfa] | [^A-Za-z0-9])
    | \\ (?P<property> (?P<kind> [pP]) \{ (?P<name> \w+) \})
    | (?P<escape> \\ .?)
    | (?P<named> \(\?< [A-Za-z][A-Za-z0-9]* >)
    | \(\? (?P<flags> [A-Za-z-]+) (?= [:)])
    | (?P<count> \{,)
    | (?P<open> \[) | (?P<close> \]) | (?P<both> &&) | .
    """,
    re.VERBOSE | re.DOTALL,
)
"""What a pattern consists of; `same` are the escapes that mean the same everywhere."""
_CACHED = 1000


@lru_cache(_CACHED)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of Java for Python, without regard to case. Raises ValueError."""
    translated = translation(pattern)
    try:
        return re.compile(translated, re.IGNORECASE | re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Return whether one of the patterns is the name, or matches it as a whole."""
    return any(pattern == name or compiled(pattern).fullmatch(name) for pattern in patterns)


def translation(pattern: str) -> str:
    """Return a pattern of Java as one of Python and PCRE.

    Raises ValueError with the name of what has no counterpart.
    """
    within = False  # a class

    def translated(piece: re.Match[str]) -> str:
        nonlocal within
        kind, text = piece.lastgroup, piece[0]
        if kind == "literal" and not within:
            return re.escape(piece["literal"])
        if kind == "unicode":
            return re.escape(chr(int(piece["unicode"], 16)))
        if piece["property"]:
            content, negated = _CLASSES.get(piece["name"]), piece["kind"] == "P"
            if content is not None and not (negated and within):
                return content if within else f"[{'^' * negated}{content}]"
        if kind == "named" and not within:
            return "(?:"
        refused = {
            "literal": r"\Q",
            "property": text,
            "escape": text if len(text) > 1 else "a backslash at the end",
            "count": None if within else text,
            "open": "a class within a class" if within else None,
            "both": "an intersection of classes (&&)" if within else None,
        }
        if kind == "flags" and not within and {*piece["flags"]} & {*"dUux"}:
            refused["flags"] = f"the flags {piece['flags']}"
        if what := refused.get(kind or ""):
            raise ValueError(f"{pattern!r} has {what} of Java's patterns, which is not supported")
        within = kind == "open" or (within and kind != "close")
        return text

    text = _PIECE.sub(translated, pattern)
    return text.encode("utf-16", "surrogatepass").decode("utf-16")  # Java's pairs of surrogates
