"""References to documents exist; generated references are up to date."""

import asyncio
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from docs.reference import (
    COMMANDS_PAGE,
    METRICS,
    SETTINGS_PAGE,
    commands_reference,
    metrics_reference,
    settings_reference,
)
from tests.harness.admin import admin_port, get, watched_facade

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "deploy", "docs", "embedded", "examples", "router", "shard_client",
           "spark_sink", "tests")  # fmt: skip
ENDINGS = {".md", ".py", ".toml", ".yaml", ".yml"}


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml"))
    for folder in FOLDERS:
        assert (ROOT / folder).is_dir(), folder
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in ENDINGS and "node_modules" not in path.parts:
                yield path


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return frozenset(heading.replace(" ", "-") for heading in plain)


def references(path: Path) -> Iterator[tuple[str, Path, str]]:
    """What is written, the page it names, and the anchor, empty for the whole page."""
    text = path.read_text()
    for found in re.finditer(r"docs/([\w-]+\.md)(?:#([\w-]+))?", text):
        yield found[0], ROOT / "docs" / found[1], found[2] or ""
    if path.suffix == ".md":
        for found in re.finditer(r"\]\(((?!https?:)[\w./-]*\.md)?(?:#([\w-]+))?\)", text):
            yield found[0], path.parent / found[1] if found[1] else path, found[2] or ""


def problems(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {written}"
        for written, page, anchor in references(path)
        if not page.is_file() or (anchor and anchor not in anchors(page))
    ]


def test_every_reference_to_a_document_resolves() -> None:
    assert [problem for path in files() for problem in problems(path)] == []


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    rows = (ROOT / "README.md").read_text().split("\n## Figures\n")[1].split("\n## ")[0]
    lines = [re.findall(r"\| ([\d,.]+)(?= |\b)", line) for line in rows.splitlines()]
    compared = [{*figures} for figures in lines if figures]
    results = [path.read_text() for path in (ROOT / "bench" / "results").glob("*.md")]
    tables = [table for text in results for table in re.findall(r"(?m)(?:^\|.*\n)+", text)]
    cells = [[re.split(r" *\| *", row)[1:-1] for row in each.splitlines()] for each in tables]
    beside = [{*line} for rows in cells for line in (*rows, *zip(*rows, strict=True))]
    assert len(compared) >= 4
    assert [each for each in compared if not any(each <= line for line in beside)] == []


def test_no_reference_is_by_section_number() -> None:
    numbered = re.compile(r"\.md\)?,?\s+(?:sections?\s+)?\d")
    assert [str(path) for path in files() if numbered.search(path.read_text())] == []


def test_every_source_that_documents_name_exists() -> None:
    named = re.compile(r"`((?:router|shard_client|spark_sink|embedded|bench|tests)/[\w./]+)`")
    pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"))
    found = [(page.name, path) for page in pages for path in named.findall(page.read_text())]
    assert len(found) > 20
    assert [(page, path) for page, path in found if not (ROOT / path).exists()] == []


def test_pages_that_name_versions_of_mongodb_lead_to_those_that_were_run() -> None:
    named = re.compile(
        r"(?:MongoDB|mongo[sd]|[Ss]ervers?(?: of)?|[Oo]n|[Ff]rom|[Bb]efore|A|mongo:) ?[678]\.[02]\b"
        r"|\b6\.0\.15\b"
    )
    link = "limitations.md#mongodbs-versions"
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name != "limitations.md"]
    naming = [page for page in pages if named.search(page.read_text())]
    assert len(naming) > 8
    assert [page.name for page in naming if link not in page.read_text()] == []
    assert "**Run**: 6.0.15" in (ROOT / "docs" / "limitations.md").read_text()


def test_the_reference_of_metrics_is_up_to_date() -> None:
    assert METRICS.read_text() == metrics_reference(), "run python -m docs.reference"


async def test_each_metric_has_figures() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        text = (await asyncio.to_thread(get, port, "/metrics")).text
    empty = {each.name for each in text_string_to_metric_families(text) if not each.samples}
    assert empty == {
        "mergerouter_client_lag_seconds",
        "mergerouter_history_left_seconds",
    }  # no client


def test_the_reference_of_settings_is_up_to_date() -> None:
    assert SETTINGS_PAGE.read_text() == settings_reference(), "run python -m docs.reference"


def test_the_reference_of_commands_is_up_to_date() -> None:
    assert COMMANDS_PAGE.read_text() == commands_reference(), "run python -m docs.reference"
