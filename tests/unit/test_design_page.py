"""The design page names what exists, a public name has one meaning, tests import no tests."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text()
WAYS = (
    "A batch's way from socket to socket",
    "An opening, from `aggregate` to the cursor",
    "A command that is passed on",
    "A batch of a job",
    "A command and a change stream on the embedded cluster",
)
PACKAGES = ("router", "shard_client", "spark_sink")
"""Not the embedded cluster, which is read by itself. Its mongod and its mongos handle the same
commands, in functions of the same names."""
DOUBLES = {
    "Batch",
    "document_of",
    "seek", "status", "verify",
}  # fmt: skip
"""Public names that occur twice. This list only becomes shorter: one meaning, one name."""


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"(?m)^#+ ", PAGE.partition(f" {heading}\n")[2], maxsplit=1)[0]


def named_in(heading: str) -> list[tuple[str, str]]:
    """The path and the function or class of each step of a way, from its table's last column.

    A path follows the names that it holds, in the same cell.
    """
    found = []
    for row in section(heading).splitlines():
        names: list[str] = []
        for code in re.findall(r"`([\w./]+)`", row.rpartition(" | ")[2]):
            if code.endswith(".py"):
                assert names, f"{row} names nothing in {code}"
                found += [(code, name) for name in names]
                names = []
            else:
                names.append(code)
        assert not names, f"{row} has no path for {names}"
    return found


@pytest.mark.parametrize("heading", WAYS)
def test_each_step_of_a_way_names_a_function_that_exists(heading: str) -> None:
    steps = named_in(heading)
    assert len(steps) > 5
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


def repeated_names(packages: tuple[str, ...], *kinds: type[ast.AST]) -> dict[str, set[str]]:
    """The public names at the top of several modules, each with the modules' paths."""
    paths = defaultdict(set)
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, kinds) and not node.name.startswith("_"):
                    paths[node.name].add(str(path.relative_to(ROOT)))
    return {name: modules for name, modules in paths.items() if len(modules) > 1}


def test_a_public_name_has_one_meaning() -> None:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    repeated = repeated_names(PACKAGES, *kinds)
    assert {name: repeated[name] for name in repeated.keys() - DOUBLES - {"main"}} == {}
    assert repeated.keys() >= DOUBLES, "remove from DOUBLES what occurs once now"
    assert repeated_names(("embedded",), ast.ClassDef) == {}


def test_no_module_imports_from_a_test() -> None:
    imports = re.compile(r"(?m)^\s*(?:from|import) tests\S*\.test_\w+")
    paths = [path for folder in ("bench", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in paths if imports.search(path.read_text())] == []
