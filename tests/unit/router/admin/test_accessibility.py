"""The status page by axe's rules of accessibility, at three widths, light and dark."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from tests.drivers.download_cache import DownloadError
from tests.drivers.node_packages import node_packages
from tests.harness.admin import NOW, admin_port, remote, stream, watched_facade
from tests.harness.browser import CHROMIUM, browser

_AXE = Path(__file__).parents[3] / "harness" / "axe" / "package.json"
_WIDTHS = (1200, 768, 390)
_RUN = (
    "axe.run().then(found => found.violations.map("
    "each => each.id + ': ' + each.nodes.map(node => node.target).join(' ')))"
)
_now = partial(datetime.fromtimestamp, NOW, UTC)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return (node_packages(_AXE) / "axe-core" / "axe.min.js").read_text()
    except DownloadError as error:
        pytest.skip(f"axe-core is not available: {error}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_violates_no_rule(axe: str, scheme: str) -> None:
    async with watched_facade(now=_now) as made, admin_port(made) as port, browser() as page:
        await page.send("Page.setBypassCSP", enabled=True)  # for axe's own script
        await page.prefer(scheme)
        for width in _WIDTHS:
            await page.resize(width, 900)
            await page.open(f"http://127.0.0.1:{port}/")
            await page.evaluate(f"{axe};1")
            assert await page.evaluate(_RUN) == [], width
            assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_only_trouble_has_a_colour() -> None:
    lanes = "[...document.querySelectorAll('.lane')]"
    names = (
        f"{lanes}.filter(e => e.classList.contains('trouble')).map(e => e.children[0].innerText)"
    )
    async with watched_facade(now=_now) as made, admin_port(made) as port, browser() as page:
        await page.open(f"http://127.0.0.1:{port}/")
        assert await page.evaluate(names) == ["north"]
        # South is the slowest, as one shard always is, but nothing is wrong with it.
        slow = remote("south", behind=3)
        made.cursors.streams = [
            stream(remote("north", behind=0), slow, holder="south", reason="idle")
        ]
        await page.open(f"http://127.0.0.1:{port}/")
        assert await page.evaluate(names) == []
        assert await page.evaluate(f"{lanes}.some(e => e.classList.contains('holder'))")
