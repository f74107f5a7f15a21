"""Java's regular expressions, translated into what Python and the servers (PCRE) both read.

Debezium's lists are patterns of Java. Most are the same everywhere; what means something else in
one of the three is translated, or refused by its name, and so are references to groups, since the
servers get all patterns of a list as one. Classes such as `\\w` are ASCII, as in Java.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

# Escapes that mean the same, beside those of characters that are neither letters nor digits.
_COMMON = frozenset("dDwWsSbBtnrfa")
_CLASSES = {
    "Lower": "a-z", "Upper": "A-Z", "ASCII": "\\x00-\\x7f", "Alpha": "a-zA-Z", "Digit": "0-9",
    "Alnum": "a-zA-Z0-9", "Punct": "!-/:-@\\[-`{-~", "Graph": "!-~", "Print": " -~",
    "Blank": " \\t", "Cntrl": "\\x00-\\x1f\\x7f", "XDigit": "0-9a-fA-F",
    "Space": " \\t\\n\\x0b\\f\\r",
}  # fmt: skip
"""Java's POSIX classes."""
_FLAGS = re.compile(r"\(\?([A-Za-z-]+)[:)]")
_NAMED = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")
_UNICODE = re.compile(r"u([0-9A-Fa-f]{4})")
_BYTE = re.compile(r"x([0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"([pP])\{(\w+)\}")
_CACHED = 1000


@lru_cache(_CACHED)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of Java for Python, without regard to case. Raises ValueError."""
    translated = translation(pattern)
    try:
        return re.compile(translated, re.IGNORECASE | re.ASCII)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None


def translation(pattern: str) -> str:
    """Return a pattern of Java as one of Python and PCRE.

    Raises ValueError with the name of what has no counterpart.
    """
    return "".join(_Translator(pattern).parts())


class _Translator:
    """Reads a pattern from its beginning to its end."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._in_class = False

    def parts(self) -> Iterator[str]:
        while self._at < len(self._pattern):
            character = self._pattern[self._at]
            if character == "\\":
                yield self._escape()
            elif character == "(" and not self._in_class:
                yield self._group()
            else:
                yield self._plain(character)

    def _plain(self, character: str) -> str:
        self._at += 1
        if character == "[":
            if self._in_class:
                raise self._refused("a class within a class")
            self._in_class = True
        elif character == "]":
            self._in_class = False
        elif self._in_class and self._pattern.startswith("&&", self._at - 1):
            raise self._refused("an intersection of classes (&&)")
        return character

    def _group(self) -> str:
        named = _NAMED.match(self._pattern, self._at)
        if named:
            self._at = named.end()
            return "(?:"
        flags = _FLAGS.match(self._pattern, self._at)
        if flags and set(flags[1]) & set("dUu"):
            raise self._refused(f"the flags {flags[1]}")
        self._at += 1
        return "("

    def _escape(self) -> str:
        start = self._at + 1
        if start == len(self._pattern):
            raise self._refused("a backslash at the end")
        character = self._pattern[start]
        if character == "Q" and not self._in_class:
            literal, _, _ = self._pattern[start + 1 :].partition("\\E")
            self._at = min(start + 1 + len(literal) + 2, len(self._pattern))
            return re.escape(literal)
        if unicode := _UNICODE.match(self._pattern, start):
            self._at = unicode.end()
            return re.escape(chr(int(unicode[1], 16)))
        if byte := _BYTE.match(self._pattern, start):
            self._at = byte.end()
            return f"\\x{byte[1]}"
        if found := _PROPERTY.match(self._pattern, start):
            return self._property(found)
        if character in _COMMON or not (character.isascii() and character.isalnum()):
            self._at += 2
            return f"\\{character}"
        raise self._refused(f"\\{character}")

    def _property(self, found: re.Match[str]) -> str:
        content = _CLASSES.get(found[2])
        negated = found[1] == "P"
        if content is None or (negated and self._in_class):
            raise self._refused(f"\\{found[0]}")
        self._at = found.end()
        if self._in_class:
            return content
        return f"[^{content}]" if negated else f"[{content}]"

    def _refused(self, what: str) -> ValueError:
        return ValueError(
            f"{self._pattern!r} has {what} of Java's patterns, which is not supported"
        )
