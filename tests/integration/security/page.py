"""The commands of docs/security.md, as the tests run them."""

import re
from pathlib import Path
from textwrap import dedent

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()


def section(heading: str) -> str:
    """Return the text below a heading, up to the next heading of its level or above."""
    level = heading.split(" ", 1)[0]
    _, found, rest = PAGE.partition(f"\n{heading}\n")
    assert found, f"docs/security.md has no {heading}"
    return re.split(rf"(?m)^#{{1,{len(level)}}} ", rest, maxsplit=1)[0]


def blocks(heading: str) -> list[str]:
    """Return the blocks of code below a heading, in their order."""
    found = re.findall(r"(?m)(?:(?<=\n\n)|^)((?: {4,}.*\n)(?:(?: {4,}.*)?\n)*)", section(heading))
    return [dedent(each).strip() for each in found]
