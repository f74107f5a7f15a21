"""The design page names what exists: a batch's way, every package, the words of the core."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text()


CORE = (
    "request", "filters", "merge", "views", "pacing", "streams", "sharing", "cursors",
)  # fmt: skip
MOST_TERMS = 40


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


@pytest.mark.parametrize("package", ["router", "shard_client", "spark_sink"])
def test_the_layout_names_every_part_of_a_package(package: str) -> None:
    layout = section("Layout and imports")
    parts = {each.parent.name for each in (ROOT / package).glob("*/__init__.py")}
    assert parts
    assert {part for part in parts if f"{part}/" not in layout} == set()


def terms() -> list[str]:
    """The left column of the glossary: each row's term, or terms that are explained together."""
    rows = [row.split(" | ") for row in section("Vocabulary").splitlines() if row.count(" | ") == 1]
    return [term.removeprefix("| ") for term, _meaning in rows[1:]] if rows else []


def words(name: str) -> set[str]:
    """The words of a term, a module or a class, in the singular."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    whole = re.findall(r"[a-z]+", name.lower().replace("-", ""))
    return {word.lower().removesuffix("s") for word in (*found, *whole)}


def unnamed(names: list[str]) -> list[str]:
    """The names that have no word of the glossary."""
    known = set().union(*map(words, terms())) - {"of", "with", "no"}
    return [name for name in names if not words(name.rpartition(".")[2]) & known]


def core() -> Iterator[str]:
    """The modules of the core, and their public classes."""
    folders = [*(ROOT / "router" / each for each in CORE), ROOT / "shard_client" / "bson"]
    for path in (path for each in folders for path in each.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            yield f"{path.parent.name}.{path.stem}"
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield f"{path.stem}.{node.name}"


def test_the_core_is_named_by_the_glossary() -> None:
    assert unnamed([*core()]) == []
    assert unnamed(["streams.steering", "merger.Departures"]) == [
        "streams.steering",
        "merger.Departures",
    ]


def test_the_glossary_is_short() -> None:
    assert 20 < len(terms()) <= MOST_TERMS
