"""The design page names what exists: functions of a batch's way, and every part of the packages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text()


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"(?m)^#+ ", PAGE.partition(f" {heading}\n")[2], maxsplit=1)[0]


def named_in_the_way() -> list[tuple[str, str]]:
    """The path and the function or class of each step; a path follows the names that it holds."""
    found = []
    for row in section("A batch's way from socket to socket").splitlines():
        names: list[str] = []
        for code in re.findall(r"`([\w./]+)`", row.rpartition(" | ")[2]):
            if not code.endswith(".py"):
                names.append(code)
                continue
            assert names, f"{row} names nothing in {code}"
            found += [(code, name) for name in names]
            names = []
        assert not names, f"{row} has no path for {names}"
    return found


def test_each_step_of_a_batch_names_a_function_that_exists() -> None:
    steps = named_in_the_way()
    assert len(steps) > 15
    missing = [
        (path, name)
        for path, name in steps
        for part in name.split(".")
        if not re.search(rf"(?m)^\s*(async def|def|class) {part}\b", (ROOT / path).read_text())
    ]
    assert missing == []


@pytest.mark.parametrize("package", ["router", "shard_client"])
def test_the_layout_names_every_part_of_a_package(package: str) -> None:
    layout = section("Layout and imports")
    parts = {each.parent.name for each in (ROOT / package).glob("*/__init__.py")}
    assert parts
    assert {part for part in parts if f"{part}/" not in layout} == set()
