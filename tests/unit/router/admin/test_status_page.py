"""The status page, in a browser and without JavaScript, and the history that it shows."""

import json
import re
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from router.admin.formatting import in_bytes
from router.admin.router_status import RouterStatus, collect_own
from router.admin.status_view import History, Sample, status_view
from router.commands.job_reports import JobReport
from router.config.log_lines import RECENT
from tests.drivers.download_cache import DownloadError
from tests.drivers.node_packages import node_packages
from tests.harness.admin import (
    admin_port,
    ask,
    fixed_checks,
    jobs,
    remote,
    stream,
    watched_facade,
)
from tests.harness.browser import CHROMIUM, Page, browser

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


async def document(port: int) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((await ask(port, "/status.json")).text)
    return parsed


async def test_the_bytes_of_streams_and_of_the_rest_are_the_total() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        made.cursors.memory.held = 5_000_000
        view = await document(port)
        page = (await ask(port, "/")).text
    held = sum(row["heldBytes"] for row in view["stream_rows"])
    assert held + view["other_bytes"] == view["buffered_bytes"] == 5_000_000
    assert "4.8 MiB of lookups, requests and further streams" in page
    assert [in_bytes(size) for size in (0, 10, 20_000, 2**21)] == [
        "0",
        "1 KiB",
        "20 KiB",
        "2.0 MiB",
    ]


async def test_jobs_in_trouble_come_first() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        rows = (await document(port))["job_rows"]
    names = [(row["job"].rpartition("/")[2], row["trouble"]) for row in rows]
    assert names == [("payments", True), ("silent", True), ("items", False), ("orders", False)]
    assert [row["age"] for row in rows] == [0, 200, 0, 0]
    orders = rows[-1]
    assert (orders["batch"], orders["lag"], orders["rate"]) == (1204, 4, 1310)


async def test_the_newest_report_of_all_workers_counts() -> None:
    async with watched_facade() as made:
        now = made.process.now()
        before = jobs(now)[2]
        status = await collect_own(made.process, True)
    worker = {**status.processes[0], "jobs": [asdict(before)]}
    ended = asdict(replace(before, arrived=now + timedelta(seconds=1), ended=True))
    other = {**worker, "worker": 2, "jobs": [ended]}
    for processes, shown in (([worker], 1), ([worker, other], 0), ([other, worker], 0)):
        view = status_view(RouterStatus(processes, len(processes)), History())
        assert view is not None
        assert len(view["job_rows"]) == shown


async def test_texts_of_servers_and_clients_are_escaped() -> None:
    text = "<script>alert(1)</script>"
    async with watched_facade() as made, admin_port(made) as port:
        made.cursors.described = [stream(remote(text, behind=1), holder=text, reason="idle")]
        checks = fixed_checks(made)
        checks.fails(text, text)
        made.process.jobs.add(JobReport(text, text, text, made.process.now(), error=text))
        page = (await ask(port, "/")).text
    assert text not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 7


async def test_the_page_needs_no_external_resources() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        reply = await ask(port, "/")
    assert not re.search(r"(?:src|href)=\"(?!data:)", reply.text)
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_warnings_of_the_log_are_shown_the_newest_first() -> None:
    for number, severity in enumerate("WIE"):
        at = f"2026-01-01T00:00:0{number}.000+00:00"
        line = {"t": {"$date": at}, "s": severity, "ctx": "main", "msg": f"line {number}"}
        RECENT.add(json.dumps(line), severity)
    async with watched_facade() as made, admin_port(made) as port:
        view = await document(port)
    shown = [row["message"] for row in view["failures"] if row["message"].startswith("line ")]
    assert shown == ["line 2", "line 0"]


async def _focused(page: Page) -> str:
    text: str = await page.evaluate(
        "(document.activeElement.getAttribute('aria-labelledby') || document.activeElement.id)"
    )
    return text


@needs_browser
async def test_the_page_follows_the_router_in_a_browser() -> None:
    async with watched_facade() as made, admin_port(made) as port, browser() as page:
        url = f"http://127.0.0.1:{port}/"
        await page.resize(1200, 900)
        await page.open(url)
        lane = "[...document.querySelectorAll('.lane')].find(e => /north/.test(e.textContent))"
        assert "reconnecting" in await page.evaluate(f"{lane}.querySelector('.why').textContent")
        # North catches up; the page shows it without a reload.
        made.cursors.described = [
            stream(
                remote("north", behind=0), remote("south", behind=3), holder="south", reason="idle"
            )
        ]
        await page.until(f"!{lane}.classList.contains('holder')")
        # The keyboard reaches the button and the tables; Enter pauses the page.
        await page.press("Tab", 9)
        assert await _focused(page) == "pause"
        await page.press("Enter", 13)
        assert await page.evaluate("document.activeElement.textContent") == "Continue"
        await page.press("Tab", 9)
        assert await _focused(page) == "streams"
        # On a phone, no element is wider than the screen.
        await page.resize(390, 800)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        # The dark colour scheme applies.
        brightness = (
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
            ".reduce((a, b) => a + b) / 3"
        )
        await page.prefer("light")
        assert await page.evaluate(brightness) > 200
        await page.prefer("dark")
        assert await page.evaluate(brightness) < 60
        assert page.complaints() == []
        assert {address.startswith((url, "data:")) for address in page.requested()} == {True}


@needs_browser
async def test_jobs_are_followed_in_a_browser() -> None:
    rows = "[...document.querySelectorAll('[aria-labelledby=jobs] tbody tr')]"
    async with watched_facade() as made, admin_port(made) as port, browser() as page:
        await page.resize(1200, 900)
        await page.open(f"http://127.0.0.1:{port}/")
        texts = await page.evaluate(f"{rows}.map(e => e.innerText)")
        assert [text.split()[0].rpartition("/")[2] for text in texts] == [
            "payments", "silent", "items", "orders",
        ]  # fmt: skip
        assert "No space left on device" in texts[0]
        assert "no report for 3 min" in texts[1]
        assert "4.0 s waits for a shard" in texts[2]
        assert "1,204" in texts[3]
        in_colour = f"{rows}.map(e => e.querySelector('.bad') !== null)"
        assert await page.evaluate(in_colour) == [True, True, False, False]
        # The silent job reports again, and the failed one works again: the colour goes.
        for report in jobs(now := made.process.now()):
            made.process.jobs.add(replace(report, arrived=now, error=None))
        await page.until(f"{rows}.length == 4 && !{in_colour}.some(Boolean)")
        await page.resize(390, 800)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.complaints() == []


_AXE = Path(__file__).parents[3] / "harness" / "axe" / "package.json"
_WIDTHS = (1200, 768, 390)
_RUN = (
    "axe.run().then(found => found.violations.map("
    "each => each.id + ': ' + each.nodes.map(node => node.target).join(' ')))"
)


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return (node_packages(_AXE) / "axe-core" / "axe.min.js").read_text()
    except DownloadError as error:
        pytest.skip(f"axe-core is not available: {error}")


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_violates_no_rule(axe: str, scheme: str) -> None:
    async with watched_facade() as made, admin_port(made) as port, browser() as page:
        await page.send("Page.setBypassCSP", enabled=True)  # for axe's own script
        await page.prefer(scheme)
        for width in _WIDTHS:
            await page.resize(width, 900)
            await page.open(f"http://127.0.0.1:{port}/")
            await page.evaluate(f"{axe};1")
            assert await page.evaluate(_RUN) == [], width
            assert await page.evaluate("document.documentElement.scrollWidth") <= width


@needs_browser
async def test_only_trouble_has_a_colour() -> None:
    lanes = "[...document.querySelectorAll('.lane')]"
    names = (
        f"{lanes}.filter(e => e.classList.contains('trouble')).map(e => e.children[0].innerText)"
    )
    async with watched_facade() as made, admin_port(made) as port, browser() as page:
        await page.open(f"http://127.0.0.1:{port}/")
        assert await page.evaluate(names) == ["north"]
        # South is the slowest, as one shard always is, but nothing is wrong with it.
        slow = remote("south", behind=3)
        made.cursors.described = [
            stream(remote("north", behind=0), slow, holder="south", reason="idle")
        ]
        await page.open(f"http://127.0.0.1:{port}/")
        assert await page.evaluate(names) == []
        assert await page.evaluate(f"{lanes}.some(e => e.classList.contains('holder'))")


START = datetime(2026, 1, 31, tzinfo=UTC)


def sample(seconds: float, lags: dict[str, float], events: int = 0) -> Sample:
    slowest = max(lags, key=lambda target: lags[target]) if lags else None
    return Sample(START + timedelta(seconds=seconds), lags, events, 2 * events, slowest)


def test_rates_are_of_the_time_between_samples() -> None:
    history = History()
    for seconds, events in ((0, 0), (5, 50), (15, 250), (20, 0)):  # a worker was restarted
        history.add(sample(seconds, {"s0": 1.0}, events))
    assert history.rates("received") == [10.0, 20.0, 0.0]
    assert history.rates("delivered") == [20.0, 40.0, 0.0]


def test_it_is_known_since_when_a_shard_is_the_slowest() -> None:
    history = History()
    for seconds, slow in ((0, "s0"), (5, "s1"), (10, "s1")):
        history.add(sample(seconds, {"s0": 1.0, "s1": 1.0, slow: 9.0}))
    now = START + timedelta(seconds=12)
    assert history.holds_since("s1", now) == 7.0
    assert history.holds_since("s0", now) == 0.0
    assert history.lags("s1") == (1.0, 9.0, 9.0)
    assert history.lags("s2") == (None, None, None)


def test_samples_are_bounded_and_no_page_adds_more_than_the_timer() -> None:
    history = History()
    for tenths in range(0, 20_000, 10):
        history.add(sample(tenths / 10, {"s0": 0.0}))
    assert len(history.lags("s0")) == 120
    history.add(sample(1999.5, {"s0": 7.0}))
    assert 7.0 not in history.lags("s0")
