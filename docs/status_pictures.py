"""Pictures of the status page for the documentation: ``python -m docs.status_pictures``.

They show a cluster of three shards with clients, a shared filter and a job: first while everything
works, then while the idle shard does not answer.
"""

import asyncio
import base64
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pymongo.errors import PyMongoError

from tests.harness.browser import Page, browser
from tests.harness.clusters import Client, start_cluster
from tests.harness.routers import RouterProcess, start_router

_FOLDER = Path(__file__).parent / "pictures"
_FILTER = [{"$match": {"operationType": "insert"}}]
_WATCHERS: tuple[tuple[str, str | None, list[dict[str, Any]], float], ...] = (
    ("billing", "orders", _FILTER, 0.0),
    ("invoices", "orders", _FILTER, 0.0),
    ("search-index", "orders", [], 0.0),
    ("fraud-check", "payments", [], 0.0),
    ("nightly-report", "payments", [], 0.5),
    ("audit", None, [], 0.0),
)
"""Application name, collection of ``shop`` or None for the cluster, pipeline, pause by event."""

_JOB = (
    "document.querySelector('[aria-labelledby=jobs] tbody td[data-name=Batch]')?.textContent > '0'"
)
_HELD = "[...document.querySelectorAll('.why')].some(e => /reconnecting/.test(e.textContent))"
_PICTURES = {
    "works": (("status-light", "light", 1200, 1640), ("status-dark", "dark", 1200, 1640)),
    "held": (("status-trouble", "light", 1200, 760), ("status-phone", "light", 390, 1100)),
}


def _watch(uri: str, name: str, what: tuple[Any, ...], stop: threading.Event) -> None:
    collection, pipeline, pause = what
    with (
        Client(uri, appname=name) as client,
        suppress(PyMongoError),
        (client.shop[collection] if collection else client).watch(
            pipeline, max_await_time_ms=500, batch_size=20 if pause else None
        ) as stream,
    ):
        while not stop.is_set():
            if stream.try_next() is not None and pause:
                stop.wait(pause)


def _write(uri: str, stop: threading.Event) -> None:
    with Client(uri) as client, suppress(PyMongoError):
        number = 0
        while not stop.wait(0.02):
            client.shop.orders.insert_one({"n": number, "total": number % 90})
            client.shop.payments.insert_one({"n": number, "text": "x" * 400})
            number += 1


@contextmanager
def _threads(router: RouterProcess, mongos: str) -> Iterator[None]:
    stop = threading.Event()
    threads = [
        threading.Thread(target=_watch, args=(router.uri, name, what, stop))
        for name, *what in _WATCHERS
    ]
    threads.append(threading.Thread(target=_write, args=(mongos, stop)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def _job(uri: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "router.cli", "job", "run", "shop.orders"]
        process = subprocess.Popen(
            [*command, "--uri", uri, "--out", "orders"], cwd=folder, stdout=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


async def _wait(page: Page, script: str) -> None:
    """Wait for a scene: Spark and a restarted server take their time."""
    for attempt in range(10):
        with suppress(TimeoutError):
            await page.until(script)
            return
        print(f"still waiting ({attempt})", flush=True)
    raise TimeoutError(script)


async def _take(page: Page, scene: str) -> None:
    for name, scheme, width, height in _PICTURES[scene]:
        await page.prefer(scheme)
        await page.resize(width, height)
        picture = await page.send("Page.captureScreenshot", format="webp", quality=85)
        (_FOLDER / f"{name}.webp").write_bytes(base64.b64decode(picture["data"]))


async def _scenes(router: RouterProcess, cluster: Any, idle: str) -> None:
    async with browser() as page:
        await page.resize(1200, 1150)
        await page.open(f"http://127.0.0.1:{router.admin_port}/")
        await _wait(page, _JOB)
        await asyncio.sleep(60)  # let the sparklines begin
        await _take(page, "works")
        cluster.stop_member(idle)
        try:
            await _wait(page, _HELD)
            await asyncio.sleep(15)  # let the failure last
            await _take(page, "held")
        finally:
            cluster.start_member(idle)


def main() -> None:
    """Take the pictures."""
    with (
        start_cluster(shards=3) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri, admin_port=0) as router,
        Client(cluster.mongos_uri) as client,
    ):
        client.shop.orders.insert_one({"n": -1})
        home = client.config.databases.find_one({"_id": "shop"})
        assert home is not None
        idle = next(shard for shard in ("shard1", "shard2") if shard != home["primary"])
        with _threads(router, cluster.mongos_uri), _job(router.uri):
            asyncio.run(_scenes(router, cluster, idle))


if __name__ == "__main__":
    main()
