"""Patterns of Java as those of Python and PCRE."""

from __future__ import annotations

import pytest

from spark_sink.options.java_patterns import compiled, translation


@pytest.mark.parametrize(
    ("pattern", "matched", "refused"),
    [
        (r"shop\.orders", ["shop.orders", "SHOP.Orders"], ["shopXorders", "shop.orders2"]),
        (r"\Qa.b*\E\d+", ["a.b*12", "A.B*1"], ["axb*1", r"\Qa.b*\E1"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"\p{Alpha}+", ["abC"], ["a1", "ä"]),
        (r"[\p{Digit}_]+", ["1_2"], ["a"]),
        (r"\P{Digit}", ["a"], ["1"]),
        (r"(?<name>a|b)c", ["ac", "bc"], ["c"]),
        (r"a\u0062\x63", ["abc"], ["a"]),
        (r"(?<=x)?a++[]]?", ["aa", "a]"], ["b"]),
        (r"\w+", ["abc_1"], ["é"]),
        (r"[(&]x\(", ["(x(", "&x("], ["x("]),
        (r"(?i)a(?-i:b)", ["ab", "Ab"], ["aB"]),
    ],
)
def test_a_pattern_matches_what_java_s_matches(
    pattern: str, matched: list[str], refused: list[str]
) -> None:
    names = [*matched, *refused]
    assert [name for name in names if compiled(pattern).fullmatch(name)] == matched


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("[a-z&&[^b]]", "intersection of classes"), ("[a[b]]", "class within a class"),
        (r"\p{L}", r"\\p{L}"), (r"[\P{Digit}]", r"\\P{Digit}"), (r"\h", r"\\h"), (r"(a)\1", r"\\1"),
        (r"(?<n>a)\k<n>", r"\\k"), (r"\z", r"\\z"), ("(?u)a", "flags u"),
        ("a\\", "backslash at the end"), ("(", "not a regular expression"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_its_name(pattern: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        compiled(pattern)


def test_the_translation_is_of_pcre_too() -> None:
    assert translation(r"(?<a>\Qx.\E)\p{Lower}\u00e9") == r"(?:x\.)[a-z]é"
