"""The documentation site builds without a warning, such as of a link that leads nowhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.browser import CHROMIUM, browser

pytest.importorskip("material", reason="mkdocs-material is not installed: pip install '.[docs]'")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_of_the_docs_is_in_the_site(site: Path) -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} | {"index"}
    assert pages <= {page.stem for page in site.glob("*.html")}
    assert list(site.rglob("*.pyc")) == []


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    for page in site.glob("*.html"):
        text = re.sub(r"<link[^>]*\bcanonical\b[^>]*>", "", page.read_text())
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]+)"', text)
        assert loaded == [], page.name


def test_code_in_lists_is_code_in_its_language(site: Path) -> None:
    quickstart = (site / "quickstart.html").read_text()
    steps = quickstart[quickstart.index('id="6-watch-the-router"') :]
    steps = steps[steps.index("<ol>") : steps.index('id="next"')]
    [block] = re.findall(r"<pre>.*?</pre>", steps, re.DOTALL)
    assert "job_name" in block
    assert '<span class="' in block, "it has colours"
    assert steps.count("<ol>") == 1, "a block of code does not end the list"


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
async def test_names_in_tables_break_in_no_word(site: Path) -> None:
    """Names break at hyphens at most, and no page is wider than its window."""
    broken = (
        "[...document.querySelectorAll('td code')].filter(e => !/[-…\\s]/.test(e.innerText)"
        " && e.getClientRects().length > 1).map(e => e.innerText)"
    )
    hidden = "Math.max(...[...document.querySelectorAll('.md-typeset__scrollwrap')].map(each))"
    async with browser() as page:
        for width in (390, 1000, 1400):
            await page.resize(width, 900)
            for name in ("settings", "metrics", "debezium", "security"):
                await page.open((site / f"{name}.html").as_uri())
                assert await page.evaluate(broken) == [], (name, width)
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.open((site / "settings.html").as_uri())
        beyond = hidden.replace("each", "e => e.scrollWidth - e.clientWidth")
        assert await page.evaluate(beyond) == 0, "the settings' meanings are hidden at 1400 pixels"
